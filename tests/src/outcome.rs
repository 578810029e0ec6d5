//! What came of playing a scenario: written by the place where it was played, read where the table is made.
//!
//! Always true: everything in it was seen there; nothing is computed from what should be.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::judge::{Difference, Part};
use crate::look::Look;
use crate::play::Play;
use crate::remedy::Tried;
use crate::rivals::Rival;
use crate::scenario::{Place, Scenario};

/// One scenario at one place.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Outcome {
    /// The scenario.
    pub name: String,
    /// What stood for the driver.
    pub place: Place,
    /// Why it could not be played.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skipped: Option<String>,
    /// The harness's or the part's own mistakes.
    #[serde(default)]
    pub wrong: Vec<String>,
    /// Who was who.
    #[serde(default)]
    pub cast: BTreeMap<String, u32>,
    /// Those of "other-1", "other-2"... who were alive.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<String>,
    /// What was said in each look: "cold", "recording", "warm", "offline".
    #[serde(default)]
    pub looks: BTreeMap<String, Told>,
    /// What came of following the proposals.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remedy: Option<Tried>,
    /// What the usual tools said.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rivals: Vec<Rival>,
    /// How long it took, s.
    #[serde(default)]
    pub seconds: f64,
}

/// What outlive said in one look, and what of it was wrong.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Told {
    /// Cause and confidence of each holding.
    pub causes: Vec<(String, String)>,
    /// Its sentences.
    pub summaries: Vec<String>,
    /// Bytes of each holding.
    pub bytes: Vec<Option<u64>>,
    /// How long the whole command took, ms.
    pub took_ms: u64,
    /// Differences, by part of the answer.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub wrong: BTreeMap<String, Vec<String>>,
}

impl Outcome {
    /// Nothing yet.
    #[must_use]
    pub fn new(scenario: &Scenario, place: Place) -> Outcome {
        Outcome {
            name: scenario.name.clone(),
            place,
            skipped: None,
            wrong: Vec::new(),
            cast: BTreeMap::new(),
            others: Vec::new(),
            looks: BTreeMap::new(),
            remedy: None,
            rivals: Vec::new(),
            seconds: 0.0,
        }
    }

    /// Notes who is who.
    pub fn cast(&mut self, play: &Play) {
        self.cast = play.report.cast.iter().map(|(name, member)| (name.clone(), member.pid)).collect();
        self.others = play.others().map(str::to_owned).collect();
    }

    /// The usual tools' answers judged again, of what they printed.
    #[must_use]
    pub fn judged(mut self, scenarios: &[Scenario]) -> Outcome {
        if let Some(scenario) = scenarios.iter().find(|scenario| scenario.name == self.name) {
            let rivals = std::mem::take(&mut self.rivals);
            self.rivals = rivals.into_iter().map(|rival| rival.judged(scenario, &self)).collect();
        }
        self
    }

    /// Everything that was wrong, as sentences.
    #[must_use]
    pub fn complaints(&self) -> Vec<String> {
        let looks = self.looks.iter().flat_map(|(look, told)| told.wrong.values().flatten().map(move |what| format!("{look}: {what}")));
        let remedy = self.remedy.iter().flat_map(|tried| tried.wrong.iter().map(|what| format!("remedy: {what}")));
        self.wrong.iter().cloned().chain(looks).chain(remedy).collect()
    }
}

impl Told {
    /// What a look said.
    #[must_use]
    pub fn new(look: &Look, differences: Vec<Difference>) -> Told {
        let mut wrong: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for difference in differences {
            let part = match difference.part {
                Part::Cause => "cause",
                Part::Owner => "owner",
                Part::Holders => "holders",
                Part::Bytes => "bytes",
                Part::Rest => "rest",
            };
            wrong.entry(part.to_owned()).or_default().push(difference.what);
        }
        let holdings = &look.explanation.holdings;
        Told {
            causes: holdings.iter().map(|h| (h.cause.name().to_owned(), h.confidence.name().to_owned())).collect(),
            summaries: holdings.iter().map(|h| h.summary.clone()).collect(),
            bytes: holdings.iter().map(|h| h.bytes).collect(),
            took_ms: u64::try_from(look.took.as_millis()).unwrap_or(u64::MAX),
            wrong,
        }
    }

    /// Parts of the answer that are wrong.
    #[must_use]
    pub fn wrong_parts(&self) -> BTreeSet<&str> {
        self.wrong.keys().map(String::as_str).collect()
    }
}
