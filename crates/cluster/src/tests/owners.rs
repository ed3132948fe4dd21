//! Single owners of state, on a node whose outside only takes notes.

use protocol::{InstanceSpec, Split};
use store::Digest;

use crate::context::WorkerNews;
use crate::context::{Context, News};
use crate::desired::{Service, Version};
use crate::files::Files;
use crate::instance::Input;
use crate::simulation::context;
use crate::wire::{WorkerId, WorkerOrder};
use crate::workers::Workers;

const DIGEST: Digest = Digest([7; 32]);
const MIB: u64 = 1 << 20;

fn order(ctx: &Context, memory_bytes: u64) -> WorkerOrder {
    WorkerOrder {
        instance: "i-1".to_owned(),
        claim: Version { count: 1, node: ctx.me },
        rank: 0,
        numerics: protocol::NUMERICS,
        spec: InstanceSpec::default(),
        split: Split::default(),
        digest: DIGEST,
        model_bytes: 1,
        memory_bytes,
        bind: std::net::Ipv4Addr::LOCALHOST.into(),
    }
}

/// The numbers of the workers that were reported as gone.
fn exits(ctx: &mut Context) -> Vec<WorkerId> {
    let news = std::iter::from_fn(|| ctx.take_news());
    let exits = news.filter_map(|news| match news {
        News::Worker { event: Input::Exited { worker, .. }, .. } => Some(worker),
        _ => None,
    });
    exits.collect()
}

#[test]
fn a_worker_that_ends_is_not_forgotten_for_one_of_its_number() {
    let mut ctx = context(100 * MIB);
    let (mut workers, me) = (Workers::default(), ctx.me);
    let order = order(&ctx, 60 * MIB);
    workers.host(&mut ctx, me, 1, order.clone(), None);
    workers.started(&mut ctx, 1, Ok(11));
    workers.end(&mut ctx, me, 1, false);
    exits(&mut ctx);
    // The number is taken until its process is gone; the next one waits for the memory.
    workers.host(&mut ctx, me, 1, order.clone(), None);
    assert_eq!(exits(&mut ctx), [1]);
    workers.host(&mut ctx, me, 2, order, None);
    assert_eq!(workers.all().count(), 2);
    workers.news(&mut ctx, 1, WorkerNews::Exited { how: "left".to_owned() });
    assert_eq!(exits(&mut ctx), [1]);
    workers.started(&mut ctx, 2, Ok(12));
    assert_eq!((workers.all().count(), workers.is_any_ending()), (1, false));
}

#[test]
fn a_damaged_copy_is_shown_until_it_is_whole_or_its_model_is_stopped() {
    let mut ctx = context(MIB);
    let (mut files, me) = (Files::default(), ctx.me);
    let spec = InstanceSpec { model: "m".to_owned(), ..InstanceSpec::default() }.into();
    let service =
        Service { id: "i-1".to_owned(), spec, digest: DIGEST, bytes: 1, created_unix_s: 0 };
    ctx.desired.serve("m", service);
    let shown = |files: &Files, ctx: &Context| files.damage.notices(ctx).count();

    files.damage.note(&mut ctx, me, DIGEST, Some(3));
    files.damage.expire(&mut ctx);
    assert_eq!(shown(&files, &ctx), 1);
    files.damage.forget(&mut ctx, me, DIGEST);
    assert_eq!(shown(&files, &ctx), 0);

    files.damage.note(&mut ctx, me, DIGEST, None);
    ctx.desired.stop("m");
    files.damage.expire(&mut ctx);
    assert_eq!(shown(&files, &ctx), 0);
}
