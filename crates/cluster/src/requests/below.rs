//! What runs the requests.

use crate::instances::{Host, Instances};

/// The owners below, which run the requests.
pub(crate) struct Below<'a> {
    pub instances: &'a mut Instances,
    pub host: &'a mut Host,
}
