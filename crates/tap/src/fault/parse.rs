//! A plan from its text, with errors that name the part that is wrong and what would be right.

use core::fmt;
use core::str::FromStr;

use super::plan::FaultPlan;
use super::rule::{Direction, Probability, Span, UNITS};

/// Why the text is no plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanError {
    /// The part that is wrong, as it was written; the whole text if it is about the whole.
    pub part: String,
    /// What is wrong with it.
    pub problem: Problem,
}

/// What is wrong with a part of the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Problem {
    /// Nothing between two commas.
    Empty,
    /// No `=`.
    NoValue,
    /// A key that does not exist.
    UnknownKey,
    /// A key for the second time.
    Twice,
    /// Not a probability.
    Probability,
    /// Not a time or a range of times.
    Time,
    /// Not a direction.
    Direction,
    /// Not a number.
    Seed,
    /// `loss`, `reorder`, `duplicate` and `corrupt` are together above 100 %.
    MoreThanCertain,
    /// No fault at all.
    NoFault,
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`: ", self.part)?;
        f.write_str(match self.problem {
            Problem::Empty => "empty part; parts are KEY=VALUE, with one comma between them",
            Problem::NoValue => "no value; a part is KEY=VALUE, as in loss=2%",
            Problem::UnknownKey => {
                "unknown key; there are loss, duplicate, corrupt, reorder, hold, delay, direction, \
                 seed"
            }
            Problem::Twice => "this key is given twice",
            Problem::Probability => {
                "not a probability; write a percentage such as 2% or 0.5%, or a fraction such as \
                 0.02"
            }
            Problem::Time => {
                "not a time; write 500us, or a range such as 200us..2ms (ns, us, ms, s; at most \
                 60s)"
            }
            Problem::Direction => "not a direction; write tx, rx or both",
            Problem::Seed => "not a seed; write a number from 0 to 18446744073709551615",
            Problem::MoreThanCertain => {
                "loss, reorder, duplicate and corrupt are together above 100%; \
                 a packet meets at most one of them"
            }
            Problem::NoFault => "names no fault; write for example loss=2%,seed=42",
        })
    }
}

impl std::error::Error for PlanError {}

impl FromStr for FaultPlan {
    type Err = PlanError;

    fn from_str(text: &str) -> Result<Self, PlanError> {
        let mut plan = Self::NONE;
        let mut seen = Vec::new();
        for part in text.split(',').map(str::trim) {
            let wrong = |problem| {
                let part = part.to_owned();
                PlanError { part, problem }
            };
            if part.is_empty() {
                let part = text.to_owned();
                let problem = Problem::Empty;
                return Err(PlanError { part, problem });
            }
            let Some((key, value)) = part.split_once('=') else {
                return Err(wrong(Problem::NoValue));
            };
            let (key, value) = (key.trim_end(), value.trim_start());
            if seen.contains(&key) {
                return Err(wrong(Problem::Twice));
            }
            seen.push(key);
            set(&mut plan, key, value).map_err(wrong)?;
        }
        let whole = |problem| {
            let part = text.to_owned();
            Err(PlanError { part, problem })
        };
        if !plan.is_possible() {
            return whole(Problem::MoreThanCertain);
        }
        if !plan.has_fault() {
            return whole(Problem::NoFault);
        }
        Ok(plan)
    }
}

fn set(plan: &mut FaultPlan, key: &str, value: &str) -> Result<(), Problem> {
    match key {
        "loss" => plan.loss = probability(value)?,
        "duplicate" => plan.duplicate = probability(value)?,
        "corrupt" => plan.corrupt = probability(value)?,
        "reorder" => plan.reorder = probability(value)?,
        "hold" => plan.hold = span(value)?,
        "delay" => plan.delay = Some(span(value)?),
        "direction" => plan.direction = direction(value)?,
        "seed" => plan.seed = value.parse().map_err(|_| Problem::Seed)?,
        _ => return Err(Problem::UnknownKey),
    }
    Ok(())
}

fn probability(text: &str) -> Result<Probability, Problem> {
    let certain = u64::from(Probability::CERTAIN);
    let (number, one) = match text.strip_suffix('%') {
        Some(number) => (number, certain / 100),
        None => (text, certain),
    };
    let parts = decimal(number, one).ok_or(Problem::Probability)?;
    let parts = u32::try_from(parts).map_err(|_| Problem::Probability)?;
    Probability::from_parts(parts).ok_or(Problem::Probability)
}

fn span(text: &str) -> Result<Span, Problem> {
    let (shortest, longest) = text.split_once("..").unwrap_or((text, text));
    let ends = (time_ns(shortest.trim()), time_ns(longest.trim()));
    let (Some(shortest_ns), Some(longest_ns)) = ends else {
        return Err(Problem::Time);
    };
    Span::new(shortest_ns, longest_ns).ok_or(Problem::Time)
}

fn time_ns(text: &str) -> Option<u64> {
    let unit_at = text.find(|c: char| c.is_ascii_alphabetic())?;
    let (number, name) = text.split_at(unit_at);
    let &(_, unit_ns) = UNITS.iter().find(|&&(unit, _)| unit == name)?;
    decimal(number, unit_ns)
}

fn direction(text: &str) -> Result<Direction, Problem> {
    let mut words = Direction::WORDS.into_iter();
    let found = words.find(|&(word, _)| word == text);
    found.map_or(Err(Problem::Direction), |(_, direction)| Ok(direction))
}

/// `text`, a decimal number, times `one`; `None` if that is no whole number or too large.
fn decimal(text: &str, one: u64) -> Option<u64> {
    let (whole, decimals) = text.split_once('.').unwrap_or((text, "0"));
    let digits = |text: &str| {
        let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        is_number.then(|| text.parse::<u64>().ok()).flatten()
    };
    let scale = 10_u64.checked_pow(u32::try_from(decimals.len()).ok()?)?;
    let fraction = u128::from(digits(decimals)?) * u128::from(one);
    if !fraction.is_multiple_of(u128::from(scale)) {
        return None;
    }
    let fraction = u64::try_from(fraction / u128::from(scale)).ok()?;
    digits(whole)?.checked_mul(one)?.checked_add(fraction)
}

#[cfg(test)]
mod tests;
