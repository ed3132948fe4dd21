//! The terminal at standard input, whose keys arrive at once and without echo. Dropping it restores
//! the former mode.

pub use platform::Terminal;

#[cfg(unix)]
mod platform {
    use std::io::{self, Read};
    use std::process::{Command, Stdio};

    /// Its former mode, as `stty` tells it, which every Unix has.
    pub struct Terminal(String);

    impl Terminal {
        /// # Errors
        /// Standard input is no terminal, or there is no `stty`.
        pub fn open() -> io::Result<Self> {
            let before = stty(&["-g"])?;
            // A read ends after a tenth of a second without a key.
            stty(&["-icanon", "-echo", "min", "0", "time", "1"])?;
            Ok(Self(before))
        }

        /// Rows and columns.
        pub fn size(&self) -> Option<(usize, usize)> {
            let told = stty(&["size"]).ok()?;
            let (rows, columns) = told.split_once(' ')?;
            Some((rows.parse().ok()?, columns.parse().ok()?))
        }

        /// Waits a tenth of a second for keys.
        pub fn read(&self, pressed: &mut [u8]) -> io::Result<usize> {
            io::stdin().read(pressed)
        }
    }

    impl Drop for Terminal {
        fn drop(&mut self) {
            // An error means that the terminal is gone.
            let _ = stty(&[&self.0]);
        }
    }

    /// Reads or sets the mode of the terminal at standard input.
    fn stty(args: &[&str]) -> io::Result<String> {
        let output = Command::new("stty").args(args).stdin(Stdio::inherit()).output()?;
        if !output.status.success() {
            return Err(io::Error::other(
                String::from_utf8_lossy(&output.stderr).trim().to_owned(),
            ));
        }
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }
}

#[cfg(windows)]
mod platform {
    use std::io;
    use std::time::Duration;

    use win32::console::{self, Keys};

    pub struct Terminal(Keys);

    impl Terminal {
        /// # Errors
        /// Standard input is no console.
        pub fn open() -> io::Result<Self> {
            Keys::open().map(Self)
        }

        /// Rows and columns.
        pub fn size(&self) -> Option<(usize, usize)> {
            console::size().map(|(columns, rows)| (rows, columns))
        }

        /// Waits a tenth of a second for keys.
        pub fn read(&self, pressed: &mut [u8]) -> io::Result<usize> {
            self.0.read(Duration::from_millis(100), pressed)
        }
    }
}
