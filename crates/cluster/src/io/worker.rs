//! One worker process: its pipes, its log, its end. Knows no instances and no nodes.

use std::net::TcpStream;
use std::pin::{Pin, pin};
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use protocol::frame::FRAME_BYTES_MAX;
use protocol::{WorkerCommand, WorkerEvent};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, BufReader};
use tokio::process::{Child, ChildStderr, ChildStdout};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::timeout;
use tracing::{debug, info};

use crate::context::WorkerNews;
use crate::io::frames;
use crate::io::process::{Group, Input, InputEnd, killed_by};

/// Capacity of the queue of commands; a worker that leaves this many unread is stuck.
const COMMANDS_MAX: usize = 4096;
/// How long a worker may take to exit after its input has closed.
const GRACE: Duration = Duration::from_secs(3);
/// After the process has ended, its pipes may still hold its last events.
const DRAIN: Duration = Duration::from_millis(200);
/// A worker that sends pulses and then stays silent this long is frozen.
const SILENCE_MAX: Duration = Duration::from_secs(10);
/// Longer log lines are cut.
const LOG_LINE_BYTES_MAX: u64 = 4 << 10;

/// An item of the queue to a worker.
#[derive(Debug)]
struct Order {
    command: WorkerCommand,
    /// A connection to pass with the command.
    beside: Option<TcpStream>,
}

/// A running worker process. Dropping it ends the process gracefully.
#[derive(Debug)]
pub(crate) struct WorkerProcess {
    pid: u32,
    orders: mpsc::Sender<Order>,
    kill: Option<oneshot::Sender<()>>,
}

impl WorkerProcess {
    /// Starts `command` in its own process group. Once `may_speak` is true, `news` receives all
    /// events of the worker, mapped by `tell`, and finally its exit. `label` marks its log lines.
    ///
    /// # Errors
    /// The program cannot be started.
    pub(crate) fn spawn<T: Send + 'static>(
        command: &[String],
        label: String,
        mut may_speak: watch::Receiver<bool>,
        news: mpsc::Sender<T>,
        tell: impl Fn(WorkerNews) -> T + Clone + Send + Sync + 'static,
    ) -> std::io::Result<Self> {
        let (program, arguments) =
            command.split_first().ok_or_else(|| std::io::Error::other("no program is named"))?;
        let mut command = tokio::process::Command::new(program);
        let input = InputEnd::of(&mut command)?;
        let mut child = command
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // Without a backtrace, ggml's last message is one line, not the output of a debugger.
            .env("GGML_NO_BACKTRACE", "1")
            // A setting of the daemon's allocator; a worker reuses its large blocks.
            .env_remove("MALLOC_MMAP_THRESHOLD_")
            .kill_on_drop(true)
            .spawn()?;
        let pid = child.id().expect("it has not been waited for");
        let group = Group::of(&child);
        let input = input.of_started(&mut child);
        let stdout = child.stdout.take().expect("piped above");
        let stderr = child.stderr.take().expect("piped above");
        let (orders, inbox) = mpsc::channel(COMMANDS_MAX);
        let (kill, killed) = oneshot::channel();
        let (freeze, frozen) = watch::channel(false);
        let last_line = Arc::new(Mutex::new(None));
        let log = tokio::spawn(log(stderr, label, last_line.clone()));
        let (to, put, mut may_say) = (news.clone(), tell.clone(), may_speak.clone());
        let said = tokio::spawn(async move {
            // If the sender is dropped, events flow at once.
            let _ = may_say.wait_for(|may| *may).await;
            if listen(stdout, to, put).await == Silent(true) {
                // The process may have exited just now.
                freeze.send_replace(true);
            }
            freeze
        });
        tokio::spawn(async move {
            let mut is_frozen = frozen.clone();
            let freezing = async move { is_frozen.wait_for(|frozen| *frozen).await.is_ok() };
            let status =
                supervise((&mut child, group), speak(input, inbox), (killed, freezing)).await;
            // Both end by themselves unless a grandchild holds the pipes open.
            let _ = timeout(DRAIN, async { (said.await, log.await) }).await;
            let last_line = last_line.lock().unwrap_or_else(PoisonError::into_inner).take();
            let how = match *frozen.borrow() {
                true => format!("froze: it said nothing for {} s", SILENCE_MAX.as_secs()),
                false => describe(status, last_line),
            };
            let _ = may_speak.wait_for(|may| *may).await;
            // The receiver is gone once the daemon shuts down.
            let _ = news.send(tell(WorkerNews::Exited { how })).await;
        });
        Ok(Self { pid, orders, kill: Some(kill) })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    /// Queues a command. A worker whose queue is full is killed.
    pub(crate) fn send(&mut self, command: WorkerCommand) {
        let order = Order { command, beside: None };
        if let Err(mpsc::error::TrySendError::Full(_)) = self.orders.try_send(order) {
            self.kill();
        }
    }

    /// Passes a connection to the worker. If the queue is half full the connection is dropped, and
    /// its caller calls again.
    pub(crate) fn call(&self, call: TcpStream) {
        if self.orders.capacity() > COMMANDS_MAX / 2 {
            let _ =
                self.orders.try_send(Order { command: WorkerCommand::Called, beside: Some(call) });
        }
    }

    /// Kills the process and its children.
    pub(crate) fn kill(&mut self) {
        if let Some(kill) = self.kill.take() {
            // The receiver is gone if the process has already ended.
            let _ = kill.send(());
        }
    }
}

/// Feeds the worker until it exits, is killed, or exceeds its grace period after the end of its
/// input.
async fn supervise(
    (child, group): (&mut Child, Group),
    speaking: impl Future<Output = ()>,
    (killed, freezing): (oneshot::Receiver<()>, impl Future<Output = bool>),
) -> std::io::Result<ExitStatus> {
    let told_to_leave = async {
        speaking.await;
        tokio::time::sleep(GRACE).await;
    };
    // A dropped sender means the graceful end, which closes the commands as well.
    let killed = async {
        if killed.await.is_err() {
            std::future::pending::<()>().await;
        }
    };
    let freezes = async {
        if !freezing.await {
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        status = child.wait() => return status,
        () = told_to_leave => {}
        () = killed => {}
        () = freezes => {}
    }
    group.kill(child);
    child.wait().await
}

/// Writes commands until the queue closes, then closes the worker's input.
async fn speak(mut input: Input, mut inbox: mpsc::Receiver<Order>) {
    while let Some(order) = inbox.recv().await {
        let sent = match &order.beside {
            None => input.write(&order.command).await,
            Some(call) => input.hand_over(&order.command, call).await,
        };
        if let Err(error) = sent {
            debug!(%error, "a worker takes no more commands");
            break;
        }
    }
    input.close().await;
}

/// Whether a worker that had sent pulses fell silent.
#[derive(Debug, PartialEq, Eq)]
struct Silent(bool);

async fn listen<T>(
    stdout: ChildStdout,
    news: mpsc::Sender<T>,
    tell: impl Fn(WorkerNews) -> T,
) -> Silent {
    let mut events = BufReader::new(stdout);
    let mut has_pulse = false;
    loop {
        let read = pin!(frames::read(&mut events, FRAME_BYTES_MAX));
        let event = match has_pulse {
            true => match in_time(read).await {
                Some(event) => event,
                None => return Silent(true),
            },
            false => read.await,
        };
        match event {
            Ok(WorkerEvent::Alive) => has_pulse = true,
            Ok(event) => {
                if news.send(tell(WorkerNews::Event(event))).await.is_err() {
                    return Silent(false);
                }
            }
            Err(protocol::frame::FrameError::Closed) => return Silent(false),
            Err(error) => {
                let reason = format!("it wrote something that is no event: {error}");
                let failed = WorkerNews::Event(WorkerEvent::Failed { reason });
                let _ = news.send(tell(failed)).await;
                return Silent(false);
            }
        }
    }
}

/// `None` after `SILENCE_MAX` without a result. A daemon that was itself frozen waits once more.
async fn in_time<T>(mut read: Pin<&mut impl Future<Output = T>>) -> Option<T> {
    loop {
        let started = Instant::now();
        match timeout(SILENCE_MAX, &mut read).await {
            Ok(event) => return Some(event),
            Err(_) if started.elapsed() > SILENCE_MAX + GRACE => {}
            Err(_) => return None,
        }
    }
}

/// Forwards the worker's log line by line, and keeps the last line: it often states the cause of
/// death.
async fn log(stderr: ChildStderr, label: String, last_line: Arc<Mutex<Option<String>>>) {
    let mut lines = BufReader::new(stderr);
    while let Some(line) = read_line(&mut lines).await {
        info!(worker = %label, "{line}");
        // A line that Rust prints below a panic's message.
        if !line.starts_with("note: run with") {
            *last_line.lock().unwrap_or_else(PoisonError::into_inner) = Some(line);
        }
    }
}

async fn read_line(lines: &mut (impl AsyncRead + AsyncBufReadExt + Unpin)) -> Option<String> {
    let mut bytes = Vec::new();
    let read = lines.take(LOG_LINE_BYTES_MAX).read_until(b'\n', &mut bytes).await;
    match read {
        Ok(0) | Err(_) => None,
        Ok(_) => Some(String::from_utf8_lossy(&bytes).trim_end().to_owned()),
    }
}

/// This daemon may have sent the signal because the worker did not exit; that is then in its log.
const KILLED: &str =
    "was killed by signal 9: by a person or a program, or by the system because memory ran out";

fn describe(status: std::io::Result<ExitStatus>, last_line: Option<String>) -> String {
    let status = match status {
        Ok(status) => status,
        Err(error) => return format!("could not be waited for: {error}"),
    };
    match (killed_by(status), status.code(), last_line) {
        (Some(9), _, _) => KILLED.to_owned(),
        (Some(signal), _, Some(line)) => {
            format!("was killed by signal {signal}; the last that it said: {}", line.trim_start())
        }
        (Some(signal), _, None) => format!("was killed by signal {signal}"),
        (None, Some(code), Some(line)) => format!("exited with status {code}: {line}"),
        (None, Some(code), None) => format!("exited with status {code}"),
        (None, None, _) => "ended".to_owned(),
    }
}

/// The workers here are scripts of a Unix shell.
#[cfg(unix)]
#[cfg(test)]
mod tests {
    use super::*;

    fn spawn(script: &str) -> (WorkerProcess, mpsc::Receiver<WorkerNews>) {
        let command = ["sh", "-c", script].map(str::to_owned);
        let (sender, news) = mpsc::channel(16);
        let (may_speak, label) = (watch::channel(true).1, "test".to_owned());
        let worker = WorkerProcess::spawn(&command, label, may_speak, sender, |news| news);
        (worker.unwrap(), news)
    }

    async fn end(mut news: mpsc::Receiver<WorkerNews>) -> String {
        loop {
            match news.recv().await.unwrap() {
                WorkerNews::Event(WorkerEvent::Failed { reason }) => return reason,
                WorkerNews::Event(_) => {}
                WorkerNews::Exited { how } => return how,
            }
        }
    }

    #[tokio::test]
    async fn the_way_it_ended_is_told() {
        let cases = [
            ("exit 3", "exited with status 3"),
            ("echo no memory >&2; exit 1", "exited with status 1: no memory"),
            ("printf 'no\\nnote: run with\\n' >&2; exit 101", "exited with status 101: no"),
            ("kill -9 $$", "was killed by signal 9"),
            ("kill -6 $$", "was killed by signal 6"),
            (
                "echo no driver >&2; kill -6 $$",
                "was killed by signal 6; the last that it said: no d",
            ),
            ("printf 'garbage'; sleep 1", "it wrote something that is no event"),
        ];
        for (script, expected) in cases {
            let (_worker, news) = spawn(script);
            let how = end(news).await;
            assert!(how.starts_with(expected), "{script}: {how:?}");
        }
    }

    #[tokio::test]
    async fn a_dropped_worker_is_asked_to_leave_and_a_killed_one_is_not() {
        let (worker, news) = spawn("cat >/dev/null; exit 7");
        drop(worker);
        assert_eq!(end(news).await, "exited with status 7");
        let (mut worker, news) = spawn("trap '' TERM; sleep 100 & wait");
        worker.kill();
        assert_eq!(end(news).await, KILLED);
    }

    #[tokio::test]
    async fn one_that_will_not_leave_is_killed() {
        let (worker, news) = spawn("sleep 100");
        drop(worker);
        assert_eq!(end(news).await, KILLED);
    }
}
