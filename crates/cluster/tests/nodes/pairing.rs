//! Joining by a number that one machine shows and a user types at another one.

use cluster::{Error, Node, PairAsking, PairState, PairWith};

use crate::support::{Home, live, poll, until};

fn at(node: &Node) -> PairWith {
    PairWith { node: None, peer: Some(node.listen_addr()) }
}

async fn asking(node: &Node) -> PairAsking {
    node.pairing().await.unwrap().asking.unwrap()
}

/// Waits for the outcome of a node's request.
async fn ended(node: &Node) -> PairState {
    poll("the end of a request", async || match asking(node).await.state {
        PairState::Waiting => None,
        state => Some(state),
    })
    .await
}

fn other_than(number: &str) -> String {
    format!("{:06}", (number.parse::<u32>().unwrap() + 1) % 1_000_000)
}

pub async fn a_number_typed_at_a_member_lets_its_machine_in_and_no_other_one() {
    let (a, b) = (Home::new("pair-a").await, Home::new("pair-b").await);
    let (a, b) = (&a.node, &b.node);
    let shown = b.pair(at(a)).await.unwrap();
    assert_eq!((shown.node, shown.name.as_str(), shown.me), (Some(a.id()), "pair-a", b.id()));
    let requests = a.pairing().await.unwrap().requests;
    assert_eq!((requests.len(), requests[0].id, &*requests[0].name), (1, b.id(), "pair-b"));
    assert!(matches!(a.accept("12345", None).await, Err(Error::NoNumber)));
    let wrong = a.accept(&other_than(&shown.number), None).await;
    assert!(matches!(wrong, Err(Error::WrongNumber { .. })), "{wrong:?}");
    let PairState::Failed { reason } = ended(b).await else { panic!() };
    assert!(reason.contains("another number was typed at pair-a"), "{reason}");
    // The right number comes too late: each number is for one try.
    assert!(matches!(a.accept(&shown.number, None).await, Err(Error::NoRequest { .. })));
    assert_eq!((a.status().nodes.len(), b.status().nodes.len()), (1, 1));

    let shown = b.pair(at(a)).await.unwrap();
    let spaced = format!("{} {}", &shown.number[..3], &shown.number[3..]);
    let paired = a.accept(&spaced, Some("pair-b")).await.unwrap();
    assert_eq!((paired.node, paired.members), (b.id(), 2));
    let PairState::Joined(joined) = ended(b).await else { panic!() };
    assert_eq!((joined.by, joined.by_name.as_str(), joined.members), (a.id(), "pair-a", 2));
    live(a, 2).await;
    live(b, 2).await;
    // A member of one cluster cannot join another; a third machine may join either.
    let c = Home::new("pair-c").await;
    assert!(matches!(b.pair(at(&c.node)).await, Err(Error::AlreadyMember { members: 2 })));
    let shown = c.node.pair(at(b)).await.unwrap();
    b.accept(&shown.number, None).await.unwrap();
    live(a, 3).await;
    live(&c.node, 3).await;

    // Guesses run out; a code still works.
    let d = Home::new("pair-d").await;
    for _ in 0..4 {
        let shown = d.node.pair(at(a)).await.unwrap();
        assert!(a.accept(&other_than(&shown.number), None).await.is_err());
        ended(&d.node).await;
    }
    let paused = d.node.pair(at(a)).await.unwrap_err().to_string();
    assert!(paused.contains("sinew invite"), "{paused}");
    d.join(a).await;
}

pub async fn who_waits_is_told_is_refused_and_may_give_up() {
    let (a, b) = (Home::new("wait-a").await, Home::new("wait-b").await);
    let c = Home::new("wait-c").await;
    let (b_shown, _) = (b.node.pair(at(&a.node)).await.unwrap(), c.node.pair(at(&a.node)).await);
    until(&a.node, "two requests", |status| {
        let told = |name: &str| status.notices.iter().any(|notice| notice.contains(name));
        status.requests.len() == 2 && told("wait-b") && told("wait-c")
    })
    .await;
    let which = a.node.accept(&b_shown.number, None).await.unwrap_err().to_string();
    assert!(which.contains("wait-b") && which.contains("wait-c"), "{which}");
    assert_eq!(a.node.refuse("wait-c").await.unwrap().id, c.node.id());
    let PairState::Failed { reason } = ended(&c.node).await else { panic!() };
    assert!(reason.contains("refused"), "{reason}");
    // A later request replaces the earlier one, whose number is void.
    let again = b.node.pair(at(&a.node)).await.unwrap();
    until(&a.node, "one request", |status| status.requests.len() == 1).await;
    assert_eq!(a.node.accept(&again.number, None).await.unwrap().node, b.node.id());
    live(&a.node, 2).await;

    // The machine has gone.
    let d = Home::new("wait-d").await;
    d.node.pair(at(&a.node)).await.unwrap();
    d.node.shutdown().await;
    until(&a.node, "no request", |status| status.requests.is_empty()).await;
    let own = a.node.pair(PairWith::default()).await;
    assert!(matches!(own, Err(Error::AlreadyMember { .. })), "{own:?}");
    let gone = c.node.pair(at(&d.node)).await;
    assert!(matches!(gone, Err(Error::Unreachable { .. })), "{gone:?}");
    let itself = c.node.pair(at(&c.node)).await;
    assert!(matches!(itself, Err(Error::JoinRefused(_))), "{itself:?}");
}

pub async fn who_asks_is_shown_at_all_members_and_decided_about_at_any() {
    let (a, b) = (Home::new("any-a").await, Home::new("any-b").await);
    let (c, d) = (Home::new("any-c").await, Home::new("any-d").await);
    b.join(&a.node).await;
    live(&b.node, 2).await;
    let shown = c.node.pair(at(&a.node)).await.unwrap();
    until(&b.node, "a request at the other member", |status| {
        let told = status.notices.iter().any(|notice| notice.contains("any-c"));
        told && status.requests.len() == 1
    })
    .await;
    let request = b.node.status().requests[0].clone();
    assert_eq!((request.id, &*request.name, &*request.at), (c.node.id(), "any-c", "any-a"));
    // The called member counts wrong numbers, at any node where they are typed.
    let wrong = b.node.accept(&other_than(&shown.number), None).await.unwrap_err().to_string();
    assert!(wrong.contains("any-c shows another number"), "{wrong}");
    ended(&c.node).await;
    until(&b.node, "no request", |status| status.requests.is_empty()).await;
    let none = b.node.accept(&shown.number, None).await;
    assert!(matches!(none, Err(Error::NoRequest { .. })), "{none:?}");

    let shown = c.node.pair(at(&a.node)).await.unwrap();
    d.node.pair(at(&b.node)).await.unwrap();
    for member in [&a, &b] {
        until(&member.node, "two requests", |status| status.requests.len() == 2).await;
    }
    let which = b.node.accept(&shown.number, None).await.unwrap_err().to_string();
    assert!(which.contains("any-c") && which.contains("any-d"), "{which}");
    assert_eq!(a.node.refuse("any-d").await.unwrap().id, d.node.id());
    let PairState::Failed { reason } = ended(&d.node).await else { panic!() };
    assert!(reason.contains("refused"), "{reason}");
    until(&b.node, "one request", |status| status.requests.len() == 1).await;
    let paired = b.node.accept(&shown.number, None).await.unwrap();
    assert_eq!((paired.node, paired.members), (c.node.id(), 3));
    for node in [&a.node, &b.node, &c.node] {
        live(node, 3).await;
    }
    until(&b.node, "no request", |status| status.requests.is_empty()).await;

    // The deciding node gets an error if the called member is lost meanwhile.
    let shown = d.node.pair(at(&a.node)).await.unwrap();
    until(&b.node, "a request", |status| status.requests.len() == 1).await;
    a.node.shutdown().await;
    assert!(b.node.accept(&shown.number, None).await.is_err());
    until(&b.node, "no request", |status| status.requests.is_empty()).await;
}

pub async fn the_one_cluster_nearby_is_asked_and_of_several_a_named_one() {
    let announced = async |name: &str| Home::with(name, |config| config.announce = true).await;
    let (a, b) = (announced("choose-a").await, announced("choose-b").await);
    until(&b.node, "a neighbour", |s| s.nearby.iter().any(|near| near.name == "choose-a")).await;
    // Other tests may announce nodes on this machine too.
    let named = PairWith { node: Some("choose-a".to_owned()), peer: None };
    let shown = b.node.pair(named).await.unwrap();
    assert_eq!(shown.node, Some(a.node.id()));
    a.node.accept(&shown.number, None).await.unwrap();
    live(&b.node, 2).await;
}
