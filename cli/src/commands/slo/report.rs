//! Reports on objectives, from the data of the history.

use anyhow::Result;
use leno_dashboard::api::Budget;
use leno_dashboard::objective::{Burn, BurnRule, ObjectiveState, SpentBudget, rules, standing};
use leno_local::layout::Layout;
use leno_local::objectives::MeshObjective;
use leno_resources::DEFAULT_OBJECTIVE_WINDOW;
use serde::Serialize;

use crate::commands::table::width;

/// A report on one objective of a document: on success or on latency.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Report {
    /// The namespace of the document.
    pub(super) namespace: String,
    /// The name of the document.
    pub(super) name: String,
    /// The target of the objective, such as `Service/cart`.
    pub(super) target: String,
    /// `success` or `latency`.
    pub(super) objective: &'static str,
    /// The percentage of requests that must be good.
    pub(super) percent: f64,
    /// The longest duration of a good request, in milliseconds.
    pub(super) below_ms: Option<u64>,
    /// The duration up to which requests count as good, in milliseconds: the highest bound of a histogram bucket
    /// that is not above `below_ms`.
    pub(super) in_time_ms: Option<f64>,
    /// The window of the objective, in seconds.
    pub(super) window_s: u64,
    /// How many seconds of the window were observed.
    pub(super) observed_s: f64,
    /// How much of the budget was spent in the window.
    #[serde(flatten)]
    pub(super) spent: SpentBudget,
    /// The share of the budget that is left. It is negative if more than the whole budget was spent.
    pub(super) budget_left: Option<f64>,
    /// The state of the objective.
    pub(super) standing: ObjectiveState,
    /// How fast the budget is spent.
    pub(super) burn: Vec<Burn>,
}

/// What an objective measures.
#[derive(Clone, Copy)]
enum ObjectiveMeasure {
    Success,
    Latency(u64),
}

impl Report {
    /// The reports on all these objectives.
    pub(super) async fn of_all(layout: &Layout, objectives: &[MeshObjective]) -> Result<Vec<Self>> {
        let mut reports = Vec::new();
        for one in objectives {
            let spec = &one.object.spec;
            if let Some(percent) = spec.success_percent {
                reports.push(Self::of(layout, one, (ObjectiveMeasure::Success, percent)).await?);
            }
            if let Some(latency) = &spec.latency {
                let below = u64::try_from(latency.below.0.as_millis())?;
                let counted = (ObjectiveMeasure::Latency(below), latency.percent);
                reports.push(Self::of(layout, one, counted).await?);
            }
        }
        Ok(reports)
    }

    async fn of(
        layout: &Layout,
        one: &MeshObjective,
        (counted, percent): (ObjectiveMeasure, f64),
    ) -> Result<Self> {
        let MeshObjective { object, servers } = one;
        let window = object.spec.window.map_or(DEFAULT_OBJECTIVE_WINDOW, |window| window.0);
        let window_ms = u64::try_from(window.as_millis())?;
        let ask = async |window_ms: u64| asked(layout, servers, counted, window_ms).await;
        let whole = ask(window_ms).await?;
        let mut burn = Vec::new();
        for rule in rules(window_ms) {
            let BurnRule { long_ms, short_ms, .. } = rule;
            let (long, short) = (ask(long_ms).await?, ask(short_ms).await?);
            burn.push(rule.judge(percent, counted.spent(&long), counted.spent(&short)));
        }
        let spent = counted.spent(&whole);
        let (objective, below_ms) = match counted {
            ObjectiveMeasure::Success => ("success", None),
            ObjectiveMeasure::Latency(below) => ("latency", Some(below)),
        };
        Ok(Self {
            namespace: object.metadata.namespace.clone(),
            name: object.metadata.name.clone(),
            target: format!("{}/{}", object.spec.target_ref.kind, object.spec.target_ref.name),
            objective,
            percent,
            below_ms,
            in_time_ms: whole.in_time_ms,
            window_s: window.as_secs(),
            observed_s: whole.observed_s,
            spent,
            budget_left: spent.left(percent),
            standing: standing(percent, spent, &burn),
            burn,
        })
    }

    /// Whether the budget is used up, or is being spent too fast.
    pub(super) fn fails(&self) -> bool {
        matches!(self.standing, ObjectiveState::Exhausted | ObjectiveState::Burning)
    }

    /// The title of the report, such as `shop/cart success 99.9 %`.
    pub(super) fn title(&self) -> String {
        let Self { namespace, name, percent, .. } = self;
        match self.below_ms {
            None => format!("{namespace}/{name} success {percent} %"),
            Some(ms) => format!("{namespace}/{name} latency {percent} % below {ms} ms"),
        }
    }

    /// The state in words, with the figures that show it.
    pub(super) fn verdict(&self) -> String {
        let SpentBudget { requests, bad } = self.spent;
        match self.standing {
            ObjectiveState::Idle => "no requests".to_owned(),
            ObjectiveState::Met => "met".to_owned(),
            ObjectiveState::Exhausted => format!("budget used up: {bad} of {requests} requests"),
            ObjectiveState::Burning => {
                let burning = self.burn.iter().find(|burn| burn.burning);
                burning.map_or_else(String::new, |burn| {
                    let (rate, seconds) = (rate(burn.long), burn.rule.long_ms / 1000);
                    format!("burns {rate} times too fast over {seconds} s")
                })
            }
        }
    }
}

impl ObjectiveMeasure {
    fn spent(self, budget: &Budget) -> SpentBudget {
        let bad = match self {
            Self::Success => budget.failed,
            Self::Latency(_) => budget.slow,
        };
        SpentBudget { requests: budget.requests, bad }
    }
}

async fn asked(
    layout: &Layout,
    servers: &[(String, String)],
    counted: ObjectiveMeasure,
    window_ms: u64,
) -> Result<Budget> {
    let servers: Vec<String> =
        servers.iter().map(|(namespace, name)| format!("{namespace}/{name}")).collect();
    let mut target = format!("/api/v1/budget?servers={}&window={window_ms}", servers.join(","));
    if let ObjectiveMeasure::Latency(below) = counted {
        target += &format!("&bound={below}");
    }
    Ok(leno_local::observer::ask(layout, &target).await?)
}

/// One line for each report, below a heading.
pub(super) fn table(reports: &[Report]) -> String {
    if reports.is_empty() {
        return "there is no ServiceLevelObjective: docs/guide/objectives.md has an example to \
                start from\n"
            .to_owned();
    }
    let titles: Vec<String> = reports.iter().map(Report::title).collect();
    let first = width("OBJECTIVE", titles.iter().map(String::as_str));
    let mut text = format!(
        "{:<first$}{:>8}{:>10}{:>8}{:>13}{:>11}{:>11}  STANDING\n",
        "OBJECTIVE", "WINDOW", "REQUESTS", "BAD", "BUDGET LEFT", "BURN FAST", "BURN SLOW"
    );
    for (report, title) in reports.iter().zip(titles) {
        let left = report
            .budget_left
            .map_or_else(|| "-".to_owned(), |left| format!("{:.1}%", left * 100.0));
        let burn = |nth: usize| rate(report.burn.get(nth).and_then(|burn| burn.long));
        let window = leno_resources::Duration(std::time::Duration::from_secs(report.window_s));
        let SpentBudget { requests, bad } = report.spent;
        text += &format!(
            "{title:<first$}{:>8}{requests:>10}{bad:>8}{left:>13}{:>11}{:>11}  {}\n",
            window.to_string(),
            burn(0),
            burn(1),
            report.verdict()
        );
    }
    text
}

fn rate(rate: Option<f64>) -> String {
    rate.map_or_else(|| "-".to_owned(), |rate| format!("{rate:.1}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_objective_is_a_line_that_says_how_it_is() {
        let spent = SpentBudget { requests: 1000, bad: 20 };
        let [fast, slow] = rules(3_600_000);
        let burn = vec![fast.judge(99.0, spent, spent), slow.judge(99.0, spent, spent)];
        let report = Report {
            namespace: "shop".to_owned(),
            name: "cart".to_owned(),
            target: "Service/cart".to_owned(),
            objective: "latency",
            percent: 99.0,
            below_ms: Some(250),
            in_time_ms: Some(200.0),
            window_s: 3600,
            observed_s: 3600.0,
            spent,
            budget_left: spent.left(99.0),
            standing: standing(99.0, spent, &burn),
            burn,
        };
        let lines = table(std::slice::from_ref(&report));
        assert_eq!(
            lines.lines().nth(1).unwrap(),
            "shop/cart latency 99 % below 250 ms        1h      1000      20      -100.0%        2.0\
             \x20       2.0  budget used up: 20 of 1000 requests"
        );
        assert!(report.fails());
        assert_eq!(
            table(&[]),
            "there is no ServiceLevelObjective: docs/guide/objectives.md has an example to start \
             from\n"
        );
    }
}
