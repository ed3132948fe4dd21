//! A template's own switch for thoughts and its scale of efforts, and what a request asks of them.
//!
//! Templates name both differently, so each known one is tried: one that changes the prompt is the
//! template's. A request gets the nearest effort that the template takes. What the template cannot
//! do is an [`Unmet`] wish, never a prompt that ignores it.

use serde_json::{Map, Value, json};

/// How hard a model should think, in the order of the scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Effort {
    None,
    Minimal,
    Low,
    Medium,
    High,
    Xhigh,
    Max,
}

/// Whether a model should think.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wish {
    On,
    Off,
    /// The model decides.
    Adaptive,
    /// Rather not: off if the template can, and no fault if it cannot.
    Quiet,
}

/// What a request asks of the model's thoughts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Thinking {
    pub wish: Option<Wish>,
    pub effort: Option<Effort>,
}

/// A wish that a template has no way to fulfil.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unmet {
    NeverThinks,
    AlwaysThinks,
}

/// What a template is given for a request's thoughts.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Settings {
    set: Vec<Setting>,
    /// The value of the usual switches, for a template that reads one only where no probe looked.
    usual: Option<bool>,
}

/// One thing that a template reads.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Setting {
    Variable(&'static str, Value),
    /// A word in the system message.
    Mark(&'static str),
}

/// The prompts of some conversations with the same settings.
#[derive(Debug, PartialEq)]
pub(super) struct Prompts {
    /// Of a user's message alone.
    pub(super) plain: String,
    /// Whether it begins the reply with a finished thought.
    pub(super) is_closed: bool,
    /// Of the others; none where the template refuses one.
    pub(super) others: Vec<Option<String>>,
}

impl Prompts {
    fn all(&self) -> impl Iterator<Item = &str> {
        [&self.plain].into_iter().chain(self.others.iter().flatten()).map(String::as_str)
    }

    fn contain(&self, word: &str) -> bool {
        self.all().any(|prompt| prompt.contains(word))
    }
}

/// Renders with these settings; `None` if the template refuses them.
type Ask<'a> = dyn Fn(&Settings) -> Option<Prompts> + 'a;

/// Variables that are true for thoughts, and those that are false.
const FLAGS: &[&str] = &[
    "enable_thinking",
    "thinking",
    "enable_reasoning",
    "enable_think",
    "thinking_enabled",
    "reasoning_enabled",
    "use_thinking",
    "use_reasoning",
    "with_thinking",
    "deep_thinking",
    "do_think",
];
const FLAGS_OFF: &[&str] = &[
    "disable_thinking",
    "disable_reasoning",
    "skip_thinking",
    "no_thinking",
    "no_think",
    "nothink",
];
/// Variables with words.
const MODES: &[&str] = &[
    "thinking_mode",
    "thinking_option",
    "thinking_type",
    "think_mode",
    "reasoning_mode",
    "thinking",
    "reasoning",
    "think",
];
const MODE_WORDS: &[(&str, &str)] = &[
    ("enabled", "disabled"),
    ("on", "off"),
    ("thinking", "chat"),
    ("think", "no_think"),
    ("think", "nothink"),
    ("/think", "/no_think"),
    ("thinking", "non_thinking"),
    ("thinking", "no_thinking"),
    ("true", "false"),
    ("yes", "no"),
];
const ADAPTIVE: &[&str] = &["adaptive", "auto"];
/// Variables with a number of tokens: without a limit, and none.
const BUDGETS: &[&str] = &["thinking_budget", "reasoning_budget"];
/// Words in a system message.
const MARKS: &[(&str, &str)] = &[("/think", "/no_think"), ("/think", "/nothink")];
/// Variables with an effort.
const SCALES: &[&str] = &[
    "reasoning_effort",
    "thinking_effort",
    "think_effort",
    "effort",
    "reasoning_strength",
    "thinking_strength",
    "reasoning_level",
    "thinking_level",
    "think_level",
    "reasoning",
    "thinking",
];
/// The words of each effort.
const WORDS: &[(Effort, &[&str])] = &[
    (Effort::None, &["none", "no_think", "off", "disabled"]),
    (Effort::Minimal, &["minimal", "min"]),
    (Effort::Low, &["low"]),
    (Effort::Medium, &["medium", "mid"]),
    (Effort::High, &["high"]),
    (Effort::Xhigh, &["xhigh", "x-high", "extra_high", "very_high"]),
    (Effort::Max, &["max", "maximum", "ultra"]),
];
/// What a model knows whose template writes any word into the prompt (gpt-oss).
const WRITTEN: &[Effort] = &[Effort::Low, Effort::Medium, Effort::High];
/// A word that no template knows.
const UNKNOWN: &str = "probe_word";

impl Effort {
    pub const ALL: [Self; 7] =
        [Self::None, Self::Minimal, Self::Low, Self::Medium, Self::High, Self::Xhigh, Self::Max];

    /// Its name in requests.
    pub fn word(self) -> &'static str {
        self.words().first().copied().unwrap_or_default()
    }

    /// The effort of this name.
    pub fn named(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|effort| effort.word() == word)
    }

    fn words(self) -> &'static [&'static str] {
        WORDS.iter().find(|(effort, _)| *effort == self).map_or(&[], |(_, words)| words)
    }
}

impl Settings {
    fn of(set: Vec<Setting>) -> Self {
        Self { set, usual: None }
    }

    /// The usual variables.
    fn usual(asked: Thinking) -> Self {
        let usual = match (asked.wish, asked.effort) {
            (Some(Wish::On), _) => Some(true),
            (Some(Wish::Off | Wish::Quiet), _) | (None, Some(Effort::None)) => Some(false),
            (Some(Wish::Adaptive), _) | (None, _) => None,
        };
        let effort = |effort: Effort| Setting::Variable("reasoning_effort", json!(effort.word()));
        Self { set: asked.effort.map(effort).into_iter().collect(), usual }
    }

    /// Sets the template's variables that a request leaves open.
    pub(super) fn write(&self, context: &mut Map<String, Value>) {
        for setting in &self.set {
            if let Setting::Variable(name, value) = setting {
                context.entry(*name).or_insert_with(|| value.clone());
            }
        }
        if let Some(usual) = self.usual {
            // DeepSeek and Granite use `thinking`, most others `enable_thinking`.
            for name in ["enable_thinking", "thinking"] {
                context.entry(name).or_insert(json!(usual));
            }
        }
    }

    /// The words for the system message.
    pub(super) fn marks(&self) -> impl Iterator<Item = &'static str> {
        self.set.iter().filter_map(|setting| match setting {
            Setting::Mark(mark) => Some(*mark),
            Setting::Variable(..) => None,
        })
    }

    /// Each thing that is set, as `name=value` or the word of a message.
    pub fn shown(&self) -> Vec<String> {
        let show = |setting: &Setting| match setting {
            Setting::Variable(name, Value::String(word)) => format!("{name}={word}"),
            Setting::Variable(name, value) => format!("{name}={value}"),
            Setting::Mark(mark) => (*mark).to_owned(),
        };
        self.set.iter().map(show).collect()
    }

    fn sets(&self, setting: &Setting) -> bool {
        let name = |setting: &Setting| match setting {
            Setting::Variable(name, _) | Setting::Mark(name) => *name,
        };
        self.set.iter().any(|own| name(own) == name(setting))
    }
}

/// What a template has.
#[derive(Debug, Default)]
pub(super) struct Switches {
    switch: Option<Switch>,
    /// The efforts that it takes, the least first.
    scale: Vec<(Effort, Setting)>,
    /// An effort that switches thoughts off.
    off: Option<Setting>,
    /// The efforts after which a prompt leaves no room for thoughts.
    closed: Vec<Effort>,
    /// Whether a prompt without settings leaves none.
    is_off: bool,
    /// Whether replies can have thoughts.
    thinks: bool,
    /// Whether the template refuses the probes, so that nothing is known of it.
    is_unknown: bool,
}

#[derive(Debug, Clone, PartialEq)]
struct Switch {
    on: Setting,
    off: Setting,
    adaptive: Option<Setting>,
}

impl Switches {
    /// Tries all that `source` names. `thinks` is whether replies can have thoughts.
    pub(super) fn probe(source: &str, thinks: bool, ask: &Ask) -> Self {
        let probe = Probe { source, ask };
        let Some(Prompts { is_closed: is_off, .. }) = probe.prompts(&[]) else {
            return Self { is_unknown: true, ..Self::default() };
        };
        let switch = probe.switch();
        let on: Vec<Setting> = switch.iter().map(|switch| switch.on.clone()).collect();
        let (scale, off) = probe.scale(&on);
        let closes = |setting: &Setting| {
            let set = [&on[..], std::slice::from_ref(setting)].concat();
            probe.prompts(&set).is_some_and(|prompts| prompts.is_closed)
        };
        let closed: Vec<Effort> =
            scale.iter().filter(|(_, one)| closes(one)).map(|(effort, _)| *effort).collect();
        let least = scale.iter().find(|(effort, _)| closed.contains(effort));
        let off = off.or(least.map(|(_, setting)| setting.clone()));
        let (switch, thinks) = match switch.or_else(|| probe.marks().filter(|_| off.is_none())) {
            Some(switch) => (Some(switch), true),
            None => (None, thinks || !scale.is_empty()),
        };
        Self { switch, scale, off, closed, is_off, thinks, is_unknown: false }
    }

    /// What to set for a request.
    ///
    /// # Errors
    /// The template cannot do it.
    pub(super) fn settle(&self, asked: Thinking) -> Result<Settings, Unmet> {
        if self.is_unknown {
            return Ok(Settings::usual(asked));
        }
        let effort = asked.effort.filter(|effort| *effort != Effort::None);
        let wish =
            asked.wish.or(asked.effort.filter(|one| *one == Effort::None).map(|_| Wish::Off));
        let (set, usual) = match wish {
            Some(Wish::On) => (self.on(effort).ok_or(Unmet::NeverThinks)?, Some(true)),
            Some(Wish::Off) => (self.off().ok_or(Unmet::AlwaysThinks)?, Some(false)),
            Some(Wish::Quiet) => (self.off().unwrap_or_default(), Some(false)),
            Some(Wish::Adaptive) if self.adaptive().is_some() => {
                (self.adaptive().into_iter().collect(), None)
            }
            Some(Wish::Adaptive) | None => match effort {
                Some(_) => (self.on(effort).unwrap_or_default(), Some(true)),
                None => (Vec::new(), None),
            },
        };
        let mut settings = Settings { set, usual };
        if let Some(setting) = effort.and_then(|effort| self.nearest(effort))
            && !settings.sets(&setting)
        {
            settings.set.push(setting);
        }
        Ok(settings)
    }

    /// `None` if the model cannot think.
    fn on(&self, effort: Option<Effort>) -> Option<Vec<Setting>> {
        match &self.switch {
            Some(switch) => Some(vec![switch.on.clone()]),
            None if self.thinks && !self.is_off => Some(Vec::new()),
            None => {
                let open = |effort: &Effort| !self.closed.contains(effort);
                let wanted = effort.unwrap_or(Effort::Medium);
                self.nearest_of(wanted, open).map(|setting| vec![setting])
            }
        }
    }

    /// `None` if the model cannot be kept from thinking.
    fn off(&self) -> Option<Vec<Setting>> {
        let setting = self.switch.as_ref().map(|switch| &switch.off).or(self.off.as_ref());
        match setting {
            Some(setting) => Some(vec![setting.clone()]),
            None => (self.is_off || !self.thinks).then(Vec::new),
        }
    }

    fn adaptive(&self) -> Option<Setting> {
        self.switch.as_ref().and_then(|switch| switch.adaptive.clone())
    }

    fn nearest(&self, effort: Effort) -> Option<Setting> {
        self.nearest_of(effort, |_| true)
    }

    /// Of two equally near efforts the higher one.
    fn nearest_of(&self, wanted: Effort, fits: impl Fn(&Effort) -> bool) -> Option<Setting> {
        let far = |effort: Effort| (effort as i32 - wanted as i32).abs();
        let fitting = self.scale.iter().filter(|(effort, _)| fits(effort));
        let nearest = fitting.rev().min_by_key(|(effort, _)| far(*effort));
        nearest.map(|(_, setting)| setting.clone())
    }
}

/// A template under test.
struct Probe<'a> {
    source: &'a str,
    ask: &'a Ask<'a>,
}

impl Probe<'_> {
    fn prompts(&self, set: &[Setting]) -> Option<Prompts> {
        (self.ask)(&Settings::of(set.to_vec()))
    }

    fn with(&self, set: &[Setting], name: &'static str, value: Value) -> Option<Prompts> {
        self.prompts(&[set, &[Setting::Variable(name, value)]].concat())
    }

    fn quotes(&self, word: &str) -> bool {
        ['"', '\''].iter().any(|mark| self.source.contains(&format!("{mark}{word}{mark}")))
    }

    fn switch(&self) -> Option<Switch> {
        let named = |name: &&&'static str| self.source.contains(**name);
        let flags = FLAGS.iter().filter(named).map(|name| (*name, true));
        let flags_off = FLAGS_OFF.iter().filter(named).map(|name| (*name, false));
        let flag = |(name, on): (&'static str, bool)| self.pair(name, json!(on), json!(!on));
        let mode = |name: &'static str| self.mode(name);
        let budget = |name: &'static str| self.pair(name, json!(-1), json!(0));
        let found = flags.chain(flags_off).find_map(flag);
        let found = found.or_else(|| MODES.iter().filter(named).copied().find_map(mode));
        found.or_else(|| BUDGETS.iter().filter(named).copied().find_map(budget))
    }

    /// A switch with these values, if both are taken and make different prompts.
    fn pair(&self, name: &'static str, on: Value, off: Value) -> Option<Switch> {
        let prompts = [&on, &off].map(|value| self.with(&[], name, value.clone()));
        let [Some(with), Some(without)] = &prompts else { return None };
        if with == without {
            return None;
        }
        let takes = |word: &&&str| {
            let prompts = self.with(&[], name, json!(word));
            on.is_string()
                && self.quotes(word)
                && prompts.is_some_and(|prompts| prompts != *with && prompts != *without)
        };
        let adaptive = ADAPTIVE.iter().find(takes);
        Some(Switch {
            on: Setting::Variable(name, on),
            off: Setting::Variable(name, off),
            adaptive: adaptive.map(|word| Setting::Variable(name, json!(word))),
        })
    }

    /// A switch with words. A template that writes any word shows by its source which it means.
    fn mode(&self, name: &'static str) -> Option<Switch> {
        let is_written = self.writes(&[], name);
        let quoted = |(on, off): &&(&str, &str)| self.quotes(on) || self.quotes(off);
        let pairs = MODE_WORDS.iter().filter(quoted);
        let words = pairs.map(|(on, off)| (json!(on), json!(off)));
        let flag = (!is_written).then(|| (json!(true), json!(false)));
        let typed = (json!({"type": "enabled"}), json!({"type": "disabled"}));
        let typed = (!is_written && self.quotes("disabled")).then_some(typed);
        let mut all = words.chain(flag).chain(typed);
        all.find_map(|(on, off)| self.pair(name, on, off))
    }

    /// Whether the template writes any value of this variable into the prompt.
    fn writes(&self, set: &[Setting], name: &'static str) -> bool {
        self.with(set, name, json!(UNKNOWN)).is_some_and(|prompts| prompts.contain(UNKNOWN))
    }

    /// A switch by words in the system message, which the prompt does not show.
    fn marks(&self) -> Option<Switch> {
        let switch = |(on, off): &(&'static str, &'static str)| {
            let prompts = [on, off].map(|mark| self.prompts(&[Setting::Mark(mark)]));
            let [Some(with), Some(without)] = prompts else { return None };
            let shown = without.contain(off);
            let switch = Switch { on: Setting::Mark(on), off: Setting::Mark(off), adaptive: None };
            (with != without && !shown).then_some(switch)
        };
        MARKS.iter().filter(|(_, off)| self.source.contains(off)).find_map(switch)
    }

    /// The efforts of the first variable that is a scale, and the one that means none.
    fn scale(&self, on: &[Setting]) -> (Vec<(Effort, Setting)>, Option<Setting>) {
        let is_switch = |name: &str| {
            on.iter().any(|own| matches!(own, Setting::Variable(other, _) if *other == name))
        };
        for name in SCALES.iter().filter(|name| self.source.contains(**name) && !is_switch(name)) {
            let mut taken = self.taken(on, name);
            let off = taken.extract_if(.., |(effort, _)| *effort == Effort::None).next();
            if off.is_some() || !taken.is_empty() {
                return (taken, off.map(|(_, setting)| setting));
            }
        }
        (Vec::new(), None)
    }

    /// The efforts that a variable takes, each with its word.
    fn taken(&self, on: &[Setting], name: &'static str) -> Vec<(Effort, Setting)> {
        let unknown = self.with(on, name, json!(UNKNOWN));
        let is_written = self.writes(on, name);
        let takes = |effort: Effort, word: &str| {
            let prompts = || self.with(on, name, json!(word));
            match &unknown {
                None => prompts().is_some(),
                Some(_) if is_written => WRITTEN.contains(&effort) || self.quotes(word),
                Some(_) => prompts().is_some_and(|prompts| Some(&prompts) != unknown.as_ref()),
            }
        };
        let word = |effort: Effort| {
            effort.words().iter().find(|word| takes(effort, word)).map(|word| (effort, *word))
        };
        let mut taken: Vec<(Effort, &'static str)> =
            Effort::ALL.into_iter().filter_map(word).collect();
        let has_levels = taken.iter().any(|(effort, _)| *effort != Effort::None);
        if unknown.is_some() && !is_written && has_levels {
            // Any other word stands for the usual effort.
            let is_free = |effort: &Effort| taken.iter().all(|(own, _)| own != effort);
            let usual = [Effort::High, Effort::Medium, Effort::Low].into_iter().find(is_free);
            taken.extend(usual.map(|effort| (effort, effort.word())));
            taken.sort_by_key(|(effort, _)| *effort);
        }
        let setting = |(effort, word)| (effort, Setting::Variable(name, json!(word)));
        taken.into_iter().map(setting).collect()
    }
}
