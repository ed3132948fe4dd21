//! Every field of a request that this server knows, in one table for all dialects.
//!
//! A request reads its [`Fields`](crate::openai::fields::Fields) in two steps. [`settle`] removes
//! the fields without effect and refuses the unsupported ones by name. Then the dialect reads the
//! rest, which the table lists as [`Act::Reads`], and the parameters of sampling, which are
//! [`PARAMETERS`]. Fields that are left over are unknown: they are ignored with a log line, because
//! clients send new ones each month.
//!
//! `docs/api.md`, `docs/guides/llama-server.md` and `/openapi.json` repeat the table; tests compare
//! them with it, and it with the fields of the clients' libraries.

mod entry;
mod path;
mod table;
#[cfg(test)]
mod tests;

use protocol::{PARAMETERS, Parameter};
use serde_json::{Map, Value};

use crate::http::error::ApiError;
use entry::{Act, Unless};
use path::values;
use table::TABLE;

pub(crate) use entry::Endpoint;

/// The code of a refused `thread`.
pub(crate) const THREAD_UNSUPPORTED: &str = "thread_unsupported_request";

/// Removes the fields that are not read. `prefix` is the path of the object, such as `options.`.
///
/// # Errors
/// 400 naming the first field that is not supported.
pub(crate) fn settle(
    endpoint: Endpoint,
    fields: &mut Map<String, Value>,
    prefix: &str,
) -> Result<(), ApiError> {
    for entry in TABLE.iter().filter(|entry| entry.of.contains(&endpoint)) {
        for name in entry.names() {
            let refused = |code| {
                let param = format!("{prefix}{name}");
                let message = format!("{param}: {}", entry.why);
                Err(ApiError::invalid(code, message).with_param(&param))
            };
            let unless = |unless: Unless, fields: &Map<String, Value>| {
                values(fields, name).into_iter().all(|value| unless.covers(value))
            };
            match entry.act {
                Act::Reads => continue,
                Act::Refuses(covered) if !unless(covered, fields) => return refused("unsupported"),
                Act::Unthreads if !unless(Unless::Null, fields) => {
                    return refused(THREAD_UNSUPPORTED);
                }
                _ => {}
            }
            // A field of an object stays in it; whoever reads the object skips it.
            fields.remove(name);
        }
    }
    Ok(())
}

/// Whether a dialect reads this field.
pub(crate) fn reads(endpoint: Endpoint, name: &str) -> bool {
    let entries = TABLE.iter().filter(|entry| entry.act == Act::Reads);
    entries.filter(|entry| entry.of.contains(&endpoint)).any(|entry| entry.has(name))
        || sampling(endpoint).any(|parameter| parameter == name)
}

/// The parameters of sampling that a dialect reads by [`PARAMETERS`].
fn sampling(endpoint: Endpoint) -> impl Iterator<Item = &'static str> {
    use Endpoint::{Chat, Completion, Infill, OllamaOptions, Response, Text};
    let named = move |row: &'static Parameter| match endpoint {
        Chat | Text | Response => Some(row.name),
        Completion | Infill => Some(row.llama_name()),
        OllamaOptions => row.fields.is_ollamas.then(|| row.llama_name()),
        _ => None,
    };
    PARAMETERS.iter().filter_map(named)
}
