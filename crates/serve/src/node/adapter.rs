//! Implements [`Cluster`] for a running node.

use std::sync::Arc;
use std::time::Duration;

use cluster::{
    BurnReport, BurnSpec, ByteStream, ClusterStatus, Error, FindNodeError, Forgotten, Found,
    GenerateRequest, Held, History, Identified, InstanceSpec, Invite, Joined, Library, ModelAbout,
    Node, NodeId, Offer, PairAsking, PairRequest, PairWith, Paired, Pairing, Parted, Planned,
};
use futures_util::stream;
use protocol::Preset;
use tokio::io::DuplexStream;
use tokio::sync::{mpsc, watch};

use super::{BoxFuture, Cluster, EventStream, PullStream, Refusal, RefusalKind};

impl Cluster for Node {
    fn status(&self) -> ClusterStatus {
        Node::status(self)
    }

    fn events(&self) -> watch::Receiver<History> {
        Node::events(self)
    }

    fn invite(&self, ttl: Duration) -> BoxFuture<'_, Result<Invite, Refusal>> {
        Box::pin(async move { Ok(Node::invite(self, ttl).await?) })
    }

    fn join<'a>(&'a self, code: &'a str) -> BoxFuture<'a, Result<Joined, Refusal>> {
        Box::pin(async move { Ok(Node::join(self, code).await?) })
    }

    fn pair(&self, with: PairWith) -> BoxFuture<'_, Result<PairAsking, Refusal>> {
        Box::pin(async move { Ok(Node::pair(self, with).await?) })
    }

    fn accept<'a>(
        &'a self,
        number: &'a str,
        node: Option<&'a str>,
    ) -> BoxFuture<'a, Result<Paired, Refusal>> {
        Box::pin(async move { Ok(Node::accept(self, number, node).await?) })
    }

    fn refuse<'a>(&'a self, node: &'a str) -> BoxFuture<'a, Result<PairRequest, Refusal>> {
        Box::pin(async move { Ok(Node::refuse(self, node).await?) })
    }

    fn withdraw(&self) -> BoxFuture<'_, Result<(), Refusal>> {
        Box::pin(async move { Ok(Node::withdraw(self).await?) })
    }

    fn pairing(&self) -> BoxFuture<'_, Result<Pairing, Refusal>> {
        Box::pin(async move { Ok(Node::pairing(self).await?) })
    }

    fn remove<'a>(&'a self, node: &'a str) -> BoxFuture<'a, Result<Parted, Refusal>> {
        Box::pin(async move { Ok(Node::remove(self, node).await?) })
    }

    fn leave(&self) -> BoxFuture<'_, Result<Parted, Refusal>> {
        Box::pin(async move { Ok(Node::leave(self).await?) })
    }

    fn burn(&self, spec: BurnSpec) -> BoxFuture<'_, Result<BurnReport, Refusal>> {
        Box::pin(async move { Ok(Node::burn(self, spec).await?) })
    }

    fn plan(&self, request: InstanceSpec) -> BoxFuture<'_, Result<Planned, Refusal>> {
        Box::pin(async move { Ok(Node::plan(self, request).await?) })
    }

    fn serve(&self, request: InstanceSpec) -> BoxFuture<'_, Result<String, Refusal>> {
        Box::pin(async move { Ok(Node::serve(self, request).await?) })
    }

    fn pull<'a>(
        &'a self,
        model: &'a str,
        update: bool,
        goes_on: bool,
    ) -> BoxFuture<'a, Result<PullStream, Refusal>> {
        Box::pin(async move {
            let receiver = match goes_on {
                true => self.pull_through(model, update).await?,
                false => Node::pull(self, model, update).await?,
            };
            let told: PullStream = Box::pin(stream::unfold(Some(receiver), |state| async {
                let mut receiver = state?;
                let status = receiver.borrow_and_update().clone();
                if status.stage.is_last() {
                    return Some((status, None));
                }
                // An error means that the fetching thread has died; the last status remains.
                let next = receiver.changed().await.ok().map(|()| receiver);
                Some((status, next))
            }));
            Ok(told)
        })
    }

    fn has_model<'a>(&'a self, model: &'a str) -> BoxFuture<'a, bool> {
        Box::pin(Node::has_model(self, model))
    }

    fn models(&self) -> BoxFuture<'_, Vec<Held>> {
        Box::pin(Node::models(self))
    }

    fn library(&self) -> BoxFuture<'_, Library> {
        Box::pin(Node::library(self))
    }

    fn variants<'a>(&'a self, model: &'a str) -> BoxFuture<'a, Result<Vec<Offer>, Refusal>> {
        Box::pin(async move { Ok(Node::variants(self, model).await?) })
    }

    fn search<'a>(&'a self, words: &'a str) -> BoxFuture<'a, Result<Vec<Found>, Refusal>> {
        Box::pin(async move { Ok(Node::search(self, words).await?) })
    }

    fn forget_prompts(&self) -> BoxFuture<'_, Vec<Forgotten>> {
        Box::pin(Node::forget_prompts(self))
    }

    fn stop_pull<'a>(&'a self, model: &'a str) -> BoxFuture<'a, Result<(), Refusal>> {
        Box::pin(async move { Ok(Node::stop_pull(self, model).await?) })
    }

    fn identify<'a>(&'a self, model: &'a str) -> BoxFuture<'a, Result<Identified, Refusal>> {
        Box::pin(async move { Ok(Node::identify(self, model).await?) })
    }

    fn describe<'a>(&'a self, model: &'a str) -> BoxFuture<'a, Result<ModelAbout, Refusal>> {
        Box::pin(async move { Ok(Node::describe(self, model).await?) })
    }

    fn remove_model<'a>(
        &'a self,
        model: &'a str,
        node: Option<&'a str>,
    ) -> BoxFuture<'a, Result<u64, Refusal>> {
        Box::pin(async move { Ok(Node::remove_model(self, model, node).await?) })
    }

    fn stop<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<(), Refusal>> {
        Box::pin(async move { Ok(Node::stop(self, name).await?) })
    }

    fn drain<'a>(&'a self, node: &'a str) -> BoxFuture<'a, Result<NodeId, Refusal>> {
        Box::pin(async move { Ok(Node::drain(self, node).await?) })
    }

    fn undrain<'a>(&'a self, node: &'a str) -> BoxFuture<'a, Result<NodeId, Refusal>> {
        Box::pin(async move { Ok(Node::undrain(self, node).await?) })
    }

    fn presets(&self) -> Arc<[Preset]> {
        Node::presets(self)
    }

    fn write_preset(&self, preset: Preset) -> BoxFuture<'_, Result<(), Refusal>> {
        Box::pin(async move { Ok(Node::write_preset(self, preset).await?) })
    }

    fn remove_preset<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<(), Refusal>> {
        Box::pin(async move { Ok(Node::remove_preset(self, name).await?) })
    }

    fn generate<'a>(
        &'a self,
        name: &'a str,
        request: GenerateRequest,
    ) -> BoxFuture<'a, Result<EventStream, Refusal>> {
        Box::pin(async move {
            let events: EventStream = Box::pin(Node::generate(self, name, request).await?);
            Ok(events)
        })
    }

    fn model_header<'a>(
        &'a self,
        name: &'a str,
    ) -> BoxFuture<'a, Result<Arc<gguf::Directory>, Refusal>> {
        Box::pin(async move { Ok(Node::model_header(self, name).await?) })
    }

    fn visits(&self) -> Option<mpsc::Receiver<DuplexStream>> {
        Node::visits(self)
    }

    fn visit<'a>(&'a self, node: &'a str) -> BoxFuture<'a, Result<Box<dyn ByteStream>, Refusal>> {
        Box::pin(async move { Ok(Node::visit(self, node).await?) })
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        let kind = match &error {
            Error::NotServed { .. }
            | Error::NoRequest { .. }
            | Error::NobodyNear
            | Error::NotNear { .. }
            | Error::NotHere(_)
            | Error::FindNode(FindNodeError::Nobody { .. }) => RefusalKind::NotFound,
            Error::Failed { .. } => RefusalKind::Failed,
            Error::QueueFull { .. } | Error::PairingPaused { .. } | Error::ManyRequests { .. } => {
                RefusalKind::Busy
            }
            Error::AlreadyServed { .. } | Error::AlreadyMember { .. } | Error::Alone => {
                RefusalKind::Conflict
            }
            Error::FindNode(_)
            | Error::OwnName { .. }
            | Error::Code(_)
            | Error::NoNumber
            | Error::WrongNumber { .. }
            | Error::OtherNumber { .. }
            | Error::WhichRequest { .. }
            | Error::ManyNear { .. }
            | Error::JoinRefused(_)
            | Error::Unusable(_) => RefusalKind::Invalid,
            _ => RefusalKind::Unavailable,
        };
        Self::new(kind, error.to_string())
    }
}
