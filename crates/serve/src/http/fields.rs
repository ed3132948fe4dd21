//! Checks shared by the fields of all dialects.

use std::fmt::Display;
use std::ops::RangeInclusive;

use text::Effort;

use super::error::ApiError;

/// Larger than any vocabulary.
pub(crate) const TOP_K_MAX: i64 = 10_000_000;
/// Far beyond any context.
pub(crate) const TOKENS_MAX: i64 = i32::MAX as i64;

/// A reasoning effort. `word` is the value of `field`.
///
/// # Errors
/// 400 if there is no such effort.
pub(crate) fn effort(
    field: &'static str,
    word: Option<&str>,
) -> Result<Option<(Effort, &'static str)>, ApiError> {
    let Some(word) = word else { return Ok(None) };
    let odd = || {
        let efforts = Effort::ALL.map(Effort::word).join(", ");
        let word: String = word.chars().take(40).collect();
        ApiError::invalid_value(field, format!("{field} is {word}; it may be {efforts}"))
    };
    Effort::named(word).map(|effort| Some((effort, field))).ok_or_else(odd)
}

/// Checks whether strings can be used as stop strings.
///
/// # Errors
/// 400 with the reason.
pub(crate) fn check_stops(field: &str, stops: &[String]) -> Result<(), ApiError> {
    let checked = text::StopMatcher::new(stops).map(drop);
    checked.map_err(|error| ApiError::invalid_value(field, format!("{field}: {error}")))
}

/// Checks that a number is within a range.
///
/// # Errors
/// 400 naming the range.
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
