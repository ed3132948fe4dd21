//! `strftime_now`: dates in templates, from a time supplied by the caller.

const DAY_S: i64 = 86_400;
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const WEEKDAYS: [&str; 7] =
    ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

/// Formats the time `unix_s` (UTC) with C's `strftime` codes and locale. Unknown codes stay as they
/// are.
pub(super) fn strftime(unix_s: i64, format: &str) -> String {
    let (days, second) = (unix_s.div_euclid(DAY_S), unix_s.rem_euclid(DAY_S));
    let (year, month, day) = civil(days);
    let weekday = WEEKDAYS[(days + 4).rem_euclid(7) as usize];
    let month_name = MONTHS[month as usize - 1];
    let hour = second / 3600;
    let hour12 = if hour % 12 == 0 { 12 } else { hour % 12 };
    let (minute, second) = (second / 60 % 60, second % 60);

    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(ch) = chars.next() {
        if ch != '%' {
            out.push(ch);
            continue;
        }
        let mut code = chars.next();
        // "%-d" is glibc's form without padding.
        let bare = code == Some('-');
        if bare {
            code = chars.next();
        }
        let two = |number: i64| if bare { number.to_string() } else { format!("{number:02}") };
        out.push_str(&match code {
            Some('Y') => year.to_string(),
            Some('y') => two(year.rem_euclid(100)),
            Some('m') => two(month),
            Some('d') => two(day),
            Some('e') => format!("{day:2}"),
            Some('H') => two(hour),
            Some('I') => two(hour12),
            Some('M') => two(minute),
            Some('S') => two(second),
            Some('p') => if hour < 12 { "AM" } else { "PM" }.to_owned(),
            Some('B') => month_name.to_owned(),
            Some('b' | 'h') => month_name[..3].to_owned(),
            Some('A') => weekday.to_owned(),
            Some('a') => weekday[..3].to_owned(),
            Some('j') => format!("{:03}", days - days_before(year) + 1),
            Some('F') => format!("{year}-{month:02}-{day:02}"),
            Some('T') => format!("{hour:02}:{minute:02}:{second:02}"),
            Some('Z') => "UTC".to_owned(),
            Some('z') => "+0000".to_owned(),
            Some('%') => "%".to_owned(),
            Some(other) => format!("%{other}"),
            None => "%".to_owned(),
        });
    }
    out
}

/// Days from 1970-01-01 to the first of January of `year` in the Gregorian calendar.
fn days_before(year: i64) -> i64 {
    let past = year - 1;
    let leaps = past.div_euclid(4) - past.div_euclid(100) + past.div_euclid(400);
    // 1969 years before 1970 had 477 leap days.
    (year - 1970) * 365 + leaps - 477
}

/// Year, month and day (from 1) of the day `days` after 1970-01-01.
fn civil(days: i64) -> (i64, i64, i64) {
    // 400 years are 146,097 days: the estimate is off by at most one year.
    let mut year = 1970 + (days * 400).div_euclid(146_097);
    while days_before(year) > days {
        year -= 1;
    }
    while days_before(year + 1) <= days {
        year += 1;
    }
    let is_leap = days_before(year + 1) - days_before(year) == 366;
    let mut left = days - days_before(year);
    for month in 1..=12 {
        let length = match month {
            2 => 28 + i64::from(is_leap),
            4 | 6 | 9 | 11 => 30,
            _ => 31,
        };
        if left < length {
            return (year, month, left + 1);
        }
        left -= length;
    }
    unreachable!("a year's months are its days")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases() {
        let cases = [
            (0, "%Y-%m-%d %H:%M:%S %A %j", "1970-01-01 00:00:00 Thursday 001"),
            (951_782_399, "%d %b %Y %T", "28 Feb 2000 23:59:59"),
            (951_782_400, "%d %B %Y %a", "29 February 2000 Tue"),
            (1_735_689_599, "%F %j %I:%M %p", "2024-12-31 366 11:59 PM"),
            (1_794_960_000, "%-d/%-m/%y %e %%", "18/11/26 18 %"),
            (-1, "%F %T", "1969-12-31 23:59:59"),
            (-62_135_596_800, "%F", "1-01-01"),
            (0, "%Q %", "%Q %"),
        ];
        for (unix_s, format, expected) in cases {
            assert_eq!(strftime(unix_s, format), expected, "{unix_s} {format}");
        }
    }
}
