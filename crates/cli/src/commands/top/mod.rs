//! `sinew top`: the cluster on a terminal, updated each second; the content of the page as text.

mod draw;
mod rates;
mod screen;
mod terminal;

use std::io::IsTerminal;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use cluster::{ClusterEvent, ClusterStatus};

use crate::args::TopArgs;
use crate::client::Client;
use crate::data_dir::DataDir;
use crate::error::{CliError, Doing};
use crate::interrupt::Interrupt;
use crate::output;
use rates::Rates;
use screen::{Key, Screen};

/// A node's reports change at most once a second.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Events kept for display.
const EVENTS_KEPT: usize = 200;

/// The displayed data.
struct View {
    status: ClusterStatus,
    rates: Rates,
    events: Vec<ClusterEvent>,
    /// Why the figures are old, if they are.
    silent: Option<String>,
    api: String,
    /// Rows scrolled out of view.
    skipped: usize,
}

/// Results of background threads, so that keys work while a node is silent.
enum News {
    Status(Box<ClusterStatus>),
    Event(Box<ClusterEvent>),
    Silent(String),
}

pub fn top(args: &TopArgs) -> Result<(), CliError> {
    if !output::obeys(&std::io::stdout()) || !std::io::stdin().is_terminal() {
        let text = "top needs a terminal to draw on and to read keys from. For a file or a program there \
                    are: sinew status --json, sinew events --json";
        return Err(CliError::Usage(text.to_owned()));
    }
    let client = Client::find(&DataDir::find(&args.data_dir)?)?;
    let mut view = View {
        status: client.status()?,
        rates: Rates::default(),
        events: Vec::new(),
        silent: None,
        api: client.address(),
        skipped: 0,
    };
    let news = look(client);
    // Ctrl-C must restore the terminal, too.
    let interrupt = Interrupt::install()?;
    let screen = Screen::open().doing("cannot draw on this terminal")?;
    let shown = run(&screen, &mut view, &news, &interrupt);
    drop(screen);
    shown.doing("cannot draw on this terminal")
}

/// Draws until a key or a signal ends it.
fn run(
    screen: &Screen,
    view: &mut View,
    news: &Receiver<News>,
    interrupt: &Interrupt,
) -> std::io::Result<()> {
    let mut due = true;
    while !interrupt.take() {
        for news in news.try_iter() {
            view.take(news);
            due = true;
        }
        if std::mem::take(&mut due) {
            let size = screen.size();
            screen.show(&draw::draw(view, size), size)?;
        }
        for key in screen.keys()? {
            match key {
                Key::Quit => return Ok(()),
                Key::Down => view.skipped += 1,
                Key::Up => view.skipped = view.skipped.saturating_sub(1),
            }
            due = true;
        }
    }
    Ok(())
}

/// Queries the node in threads that end with the program.
fn look(client: Client) -> Receiver<News> {
    let (news, told) = channel();
    let (events, other) = (news.clone(), client.clone());
    std::thread::spawn(move || {
        let mut after = 0;
        loop {
            // The stream ends with the node, and is opened again.
            let _ = other.events(after, true, |event| {
                after = event.id;
                events.send(News::Event(Box::new(event))).is_ok()
            });
            std::thread::sleep(LOOK_EVERY);
        }
    });
    std::thread::spawn(move || {
        loop {
            let found = match client.status() {
                Ok(status) => News::Status(Box::new(status)),
                Err(error) => News::Silent(error.to_string()),
            };
            if news.send(found).is_err() {
                return;
            }
            std::thread::sleep(LOOK_EVERY);
        }
    });
    told
}

impl View {
    fn take(&mut self, news: News) {
        match news {
            News::Status(status) => {
                self.rates.observe(&status, Instant::now());
                self.status = *status;
                self.silent = None;
            }
            News::Silent(why) => self.silent = Some(why),
            News::Event(event) => {
                self.events.retain(|known| Some(known.id) != event.replaces);
                self.events.push(*event);
                if self.events.len() > EVENTS_KEPT {
                    self.events.remove(0);
                }
            }
        }
    }
}
