//! The request that an instance sends to itself once it is linked and idle, so that it has proved
//! to work before a client needs it.

use protocol::RequestId;

use crate::GenerateRequest;

/// The id of the instance's own request; those of clients are higher.
pub(super) const WARM_UP: RequestId = 0;

/// One token after the vocabulary's first token, which every vocabulary has.
pub(super) fn warm_up() -> Box<GenerateRequest> {
    Box::new(GenerateRequest { prompt: vec![0], max_tokens: 1, ..GenerateRequest::default() })
}

#[cfg(test)]
mod tests {
    use protocol::WorkerEvent;

    use super::super::Input;
    use super::super::tests::{brief, done, instance, load, ms, says};
    use super::*;

    #[test]
    fn an_idle_instance_tries_itself_in_every_epoch() {
        let linked = |epoch| WorkerEvent::Linked { epoch, notes: Vec::new() };
        let token = || WorkerEvent::Token { request: WARM_UP, answer: 1.into() };
        let mut instance = instance();
        load(&mut instance, 1, 1);
        load(&mut instance, 2, 2);
        says(&mut instance, 1, linked(1), 3);
        assert_eq!(brief(&says(&mut instance, 2, linked(1), 3)), "generate1#0");
        assert!(!instance.status().has_generated);
        assert_eq!(brief(&says(&mut instance, 2, token(), 4)), "");
        assert!(!instance.status().has_generated, "only rank 0 may say so");
        assert_eq!(brief(&says(&mut instance, 1, token(), 4)), "", "nobody has asked for it");
        assert!(instance.status().has_generated);
        says(&mut instance, 1, done(WARM_UP), 5);
        assert_eq!(instance.status().requests_running, 0);
        instance.step(Input::Exited { worker: 2, how: "was killed by signal 9".to_owned() }, ms(6));
        assert!(!instance.status().has_generated);
        instance.step(Input::Tick, ms(200));
        load(&mut instance, 3, 201);
        says(&mut instance, 1, linked(2), 202);
        assert_eq!(brief(&says(&mut instance, 3, linked(2), 202)), "generate1#0");
        assert!(!instance.status().has_generated);
        says(&mut instance, 1, done(WARM_UP), 203);
        assert!(instance.status().has_generated, "an end at once is a token as well");
    }
}
