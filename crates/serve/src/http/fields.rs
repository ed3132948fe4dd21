//! Checks that fields of all dialects have in common.

use std::fmt::Display;
use std::ops::RangeInclusive;

use super::error::ApiError;

/// Larger than any vocabulary.
pub(crate) const TOP_K_MAX: i64 = 10_000_000;
/// Far more than any context holds.
pub(crate) const TOKENS_MAX: i64 = i32::MAX as i64;

/// The efforts that some model or other knows.
pub(crate) const EFFORTS: &[&str] = &["none", "minimal", "low", "medium", "high", "xhigh", "max"];

/// Whether strings can be those at which an answer ends.
///
/// # Errors
/// 400 that says why not.
pub(crate) fn check_stops(field: &str, stops: &[String]) -> Result<(), ApiError> {
    let checked = text::StopMatcher::new(stops).map(drop);
    checked.map_err(|error| ApiError::invalid_value(field, format!("{field}: {error}")))
}

/// A number between two others.
///
/// # Errors
/// 400 that says between which.
pub(crate) fn within<T: PartialOrd + Display>(
    field: &str,
    value: Option<T>,
    range: RangeInclusive<T>,
) -> Result<Option<T>, ApiError> {
    match value {
        Some(found) if !range.contains(&found) => {
            let (low, high) = range.into_inner();
            let message = format!("{field} is {found}; it must be from {low} to {high}");
            Err(ApiError::invalid_value(field, message))
        }
        value => Ok(value),
    }
}
