//! Nodes that each have the whole model and a CPU of their own: what one of them does alone, and
//! each of them while all do, is what the predictions of their splits rest on.

use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};

use placement::Measured;

use super::Test;
use crate::args::LocalArgs;
use crate::error::Error;
use crate::local;
use crate::progress::Shown;

/// The end of the channels ends the threads.
pub struct Alone {
    nodes: Vec<Node>,
}

struct Node {
    work: Sender<Test>,
    rates: Receiver<Result<f64, Error>>,
}

impl Alone {
    /// Loads the model on each node, as `asked` says, which is of one.
    ///
    /// # Errors
    /// It cannot be loaded.
    pub fn start(
        model: &Path,
        asked: &LocalArgs,
        context: usize,
        nodes: usize,
        progress: Shown,
    ) -> Result<Self, Error> {
        let start = |index: usize| {
            let (work, todo) = channel::<Test>();
            let (done, rates) = channel();
            let cpus = engine::own_cpus(index, nodes, 1);
            let (model, asked) = (model.to_owned(), asked.clone());
            std::thread::spawn(move || {
                engine::keep_to(&cpus);
                match local::start_for(&model, &asked, (context, 1), progress) {
                    Err(error) => drop(done.send(Err(error))),
                    Ok(mut local) => {
                        for test in todo {
                            if done.send(test.rate(&mut local)).is_err() {
                                return;
                            }
                        }
                    }
                }
            });
            Node { work, rates }
        };
        Ok(Self { nodes: (0..nodes).map(start).collect() })
    }

    /// Tokens a second of the first node, while the others rest.
    ///
    /// # Errors
    /// As [`Self::start`], or a step failed.
    pub fn one(&self, prompt: Test, answer: Test) -> Result<Measured, Error> {
        let rate = |test| Ok::<f64, Error>(self.run(test, 1)?[0]);
        Ok(Measured { prefill: rate(prompt)?, decode: rate(answer)? })
    }

    /// Tokens a second of a node, on average, while all work.
    ///
    /// # Errors
    /// As [`Self::one`].
    pub fn each(&self, prompt: Test, answer: Test) -> Result<Measured, Error> {
        let count = self.nodes.len();
        let mean = |test| {
            let rates = self.run(test, count)?;
            Ok::<f64, Error>(rates.iter().sum::<f64>() / count as f64)
        };
        Ok(Measured { prefill: mean(prompt)?, decode: mean(answer)? })
    }

    /// The first nodes work at once.
    fn run(&self, test: Test, count: usize) -> Result<Vec<f64>, Error> {
        let gone = || Error::Usage("a thread that measures has ended".to_owned());
        for node in &self.nodes[..count] {
            // Who has ended has said why.
            let _ = node.work.send(test);
        }
        let rates = self.nodes[..count].iter();
        rates.map(|node| node.rates.recv().unwrap_or_else(|_| Err(gone()))).collect()
    }
}
