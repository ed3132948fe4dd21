//! This node as its instances see it: services, and the owners of state below them.

use std::sync::Arc;

use protocol::WorkerCommand;

use crate::NodeId;
use crate::context::Context;
use crate::context::ServedFile;
use crate::files::Files;
use crate::paths::Paths;
use crate::wire::{Message, WorkerId, WorkerOrder};
use crate::workers::Workers;

pub(crate) struct Host {
    pub ctx: Context,
    pub paths: Paths,
    pub files: Files,
    pub workers: Workers,
}

impl Host {
    /// Orders a worker on a node. `served`: the file of the instance.
    pub(super) fn order(
        &mut self,
        node: NodeId,
        worker: WorkerId,
        mut order: Box<WorkerOrder>,
        served: Option<Arc<ServedFile>>,
    ) {
        order.numerics = self.ctx.versions.numerics;
        if node == self.ctx.me {
            self.workers.host(&mut self.ctx, node, worker, *order, served);
        } else {
            self.ctx.send_to(node, Message::Spawn { worker, order });
        }
    }

    pub(super) fn command(&mut self, node: NodeId, worker: WorkerId, command: WorkerCommand) {
        if node == self.ctx.me {
            self.workers.command(&mut self.ctx, node, worker, command);
        } else {
            self.ctx.send_to(node, Message::Command { worker, command });
        }
    }

    pub(super) fn end(&mut self, node: NodeId, worker: WorkerId, at_once: bool) {
        if node == self.ctx.me {
            self.workers.end(&mut self.ctx, node, worker, at_once);
        } else {
            self.ctx.send_to(node, Message::End { worker, at_once });
        }
    }
}
