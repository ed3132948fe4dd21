//! The clap arguments of `sinew bench serve`: the load on a server.

use std::str::FromStr;

use clap::{Args, ValueEnum};

#[derive(Debug, Clone, Args)]
pub struct ServeArgs {
    /// The server, any that speaks OpenAI's API; what $OPENAI_API_KEY holds is sent as the key
    #[arg(long, default_value = "http://127.0.0.1:8750")]
    pub url: String,
    /// The model to ask [default: the first that the server lists]
    #[arg(long)]
    pub model: Option<String>,
    /// What to ask for
    #[arg(long, value_enum, default_value_t = Endpoint::Chat)]
    pub endpoint: Endpoint,
    /// Requests that are measured
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = positive)]
    pub requests: usize,
    /// Most requests at once, at most 512 [default: as many as come]
    #[arg(long, value_name = "N", value_parser = positive)]
    pub concurrency: Option<usize>,
    /// Requests a second, at random times (a Poisson process); inf sends all at once
    #[arg(long, value_name = "RATE", default_value_t = f64::INFINITY, value_parser = rate)]
    pub request_rate: f64,
    /// Tokens of each prompt, what the server adds around it included
    #[arg(long, value_name = "TOKENS", default_value_t = 128, value_parser = positive)]
    pub input_tokens: usize,
    /// Of those, tokens at the start that all prompts share
    #[arg(long, value_name = "TOKENS", default_value_t = 0)]
    pub shared_prefix_tokens: usize,
    /// Tokens of each answer
    #[arg(long, value_name = "TOKENS", default_value_t = 128, value_parser = positive)]
    pub output_tokens: usize,
    /// Let the model end an answer sooner, instead of asking the server to ignore its end token
    #[arg(long)]
    pub stop_at_eos: bool,
    /// 0 always takes the likeliest token
    #[arg(long, default_value_t = 0.0)]
    pub temperature: f32,
    /// Requests before the measurement, with other prompts but the same shared start
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub warmup: usize,
    /// Seed of prompts and times. The same seed sends the same prompts: a server that caches them
    /// answers a second run from its cache
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// What a good request keeps to, such as ttft:500 tpot:50 e2e:5000, milliseconds
    #[arg(long, value_name = "METRIC:MS", num_args = 1..)]
    pub goodput: Vec<Goal>,
    /// Print JSON instead of a table
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Endpoint {
    /// `/v1/chat/completions`
    Chat,
    /// `/v1/completions`
    Completions,
}

/// What one request's time must stay within to be a good one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Goal {
    pub time: GoalTime,
    pub ms_max: f64,
}

/// A time of one request that a goal can be set for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GoalTime {
    FirstToken,
    PerOutputToken,
    EndToEnd,
}

impl FromStr for Goal {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wanted = || "expected ttft:MS, tpot:MS or e2e:MS, such as ttft:500".to_owned();
        let (name, ms) = text.split_once(':').ok_or_else(wanted)?;
        let time = match name {
            "ttft" => GoalTime::FirstToken,
            "tpot" => GoalTime::PerOutputToken,
            "e2e" | "e2el" => GoalTime::EndToEnd,
            _ => return Err(wanted()),
        };
        let ms_max = ms.parse().ok().filter(|ms| *ms > 0.0).ok_or_else(wanted)?;
        Ok(Self { time, ms_max })
    }
}

fn positive(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| *number > 0);
    number.ok_or_else(|| "expected a whole number of at least 1".to_owned())
}

fn rate(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|rate| *rate > 0.0);
    number.ok_or_else(|| "expected a number above 0, or inf".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goals_name_a_time_and_its_limit() {
        let goal = "ttft:500".parse::<Goal>().unwrap();
        assert_eq!(goal, Goal { time: GoalTime::FirstToken, ms_max: 500.0 });
        assert_eq!("e2e:1.5".parse::<Goal>().unwrap().ms_max, 1.5);
        for wrong in ["", "ttft", "ttft:", "ttft:-1", "ttft:NaN", "itl:5"] {
            assert!(wrong.parse::<Goal>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_load_has_a_size() {
        assert!(positive("0").is_err() && positive("-1").is_err() && positive("3") == Ok(3));
        assert!(rate("0").is_err() && rate("NaN").is_err() && rate("inf") == Ok(f64::INFINITY));
    }
}
