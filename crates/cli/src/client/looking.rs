//! Requests for a node's events, and for what it logs.

use std::io::{BufRead, BufReader};

use cluster::ClusterEvent;
use serde_json::{Value, json};

use super::{ANSWER_MAX, Client};
use crate::error::{CliError, Doing};

impl Client {
    /// Passes events after one to `on_event` until it returns false; with `follow` also future
    /// events, until the node ends.
    ///
    /// # Errors
    /// The node does not answer, or its answer is malformed.
    pub fn events(
        &self,
        after: u64,
        follow: bool,
        mut on_event: impl FnMut(ClusterEvent) -> bool,
    ) -> Result<(), CliError> {
        let url = format!("{}/sinew/v1/events?after={after}&follow={follow}", self.api);
        if !follow {
            let events: Vec<ClusterEvent> = self.get(&url)?;
            events.into_iter().all(on_event);
            return Ok(());
        }
        let request = self.authorize(self.agent.get(&url))?;
        let response = request.call();
        let response = response.map_err(|error| self.unreachable(error, ANSWER_MAX))?;
        let response = self.refuse_errors(response)?;
        for line in BufReader::new(response.into_body().into_reader()).lines() {
            let line = line.doing("the node stopped telling its events")?;
            let Some(data) = line.strip_prefix("data: ") else { continue };
            let event = serde_json::from_str(data)
                .map_err(|error| CliError::Refused(format!("the node sent {data:?}: {error}")))?;
            if !on_event(event) {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Sets what the node logs from now on.
    pub fn log_level(&self, level: &str) -> Result<(), CliError> {
        let body = json!({ "level": level });
        self.ask::<Value>("/sinew/v1/log-level", &body, ANSWER_MAX).map(drop)
    }
}
