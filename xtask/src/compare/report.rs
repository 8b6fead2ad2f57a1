//! A comparison told: a table that is Markdown, JSON with every round, a figure.

use serde_json::{Value, json};

use super::rounds::{Pair, Round, Share, Spread};
use super::works::{Panel, Work};

pub struct Comparison {
    pub model: String,
    pub file_bytes: u64,
    pub threads: usize,
    pub works: &'static [Work],
    /// At least one.
    pub rounds: Vec<Round>,
}

const THEIRS: &str = "llama.cpp";
const OURS: &str = "loquat";

/// A line of the table.
struct Row {
    name: String,
    /// As in JSON: speeds by their work, others by what they are.
    key: &'static str,
    unit: &'static str,
    decimals: usize,
    pair: Pair,
    share: Option<Share>,
}

impl Comparison {
    fn rows(&self) -> Vec<Row> {
        let speeds = self.works.iter().enumerate().filter_map(|(place, work)| {
            Some(Row {
                name: format!("{}, tokens/s", work.shown),
                key: work.name,
                unit: "tokens/s",
                decimals: 1,
                pair: Pair::from_rounds(&self.rounds, |measured| Some(measured.speeds[place]))?,
                share: Share::from_rounds(&self.rounds, place),
            })
        });
        let ready = Pair::from_rounds(&self.rounds, |measured| Some(measured.ready_seconds));
        let ready = ready.map(|pair| Row {
            name: "ready, s (less is better)".to_owned(),
            key: "ready",
            unit: "s",
            decimals: 2,
            pair,
            share: None,
        });
        let megabytes = |bytes: f64| bytes / 1e6;
        let peak = Pair::from_rounds(&self.rounds, |measured| measured.peak_bytes.map(megabytes));
        let peak = peak.map(|pair| Row {
            name: "peak memory, MB (less is better)".to_owned(),
            key: "peak_memory",
            unit: "MB",
            decimals: 0,
            pair,
            share: None,
        });
        speeds.chain(ready).chain(peak).collect()
    }

    /// What the machine gives, over all rounds: GB/s read, and billions of multiply-adds.
    fn machine(&self) -> (Spread, Spread, &str) {
        let machines = || self.rounds.iter().map(|round| &round.machine);
        let read = Spread::from_values(machines().map(|machine| machine.read_bytes_per_second));
        let made = Spread::from_values(machines().map(|machine| machine.multiply_adds_per_second));
        let instructions = machines()
            .next()
            .map_or("", |machine| &machine.instructions);
        let billions = |spread: Spread| spread.map(|value| value / 1e9);
        (billions(read), billions(made), instructions)
    }

    pub fn markdown(&self) -> String {
        let (read, made, instructions) = self.machine();
        let mut text = format!(
            "\n{}, {:.0} MB, {} thread{}; medians of {} interleaved round{}, the least and the \
             most in parentheses. The machine read {} GB/s and made {} billion int8 \
             multiply-adds/s ({instructions}).\n\n",
            self.model,
            self.file_bytes as f64 / 1e6,
            self.threads,
            plural(self.threads),
            self.rounds.len(),
            plural(self.rounds.len()),
            shown(read, 1),
            shown(made, 0),
        );
        let limit = "of the limit";
        text += &format!("| | {THEIRS} | {OURS} | ratio | {THEIRS} {limit} | {OURS} {limit} |\n");
        text += "|---|---|---|---|---|---|\n";
        for row in self.rows() {
            let [theirs, ours] = [&row.pair.theirs, &row.pair.ours]
                .map(|rounds| shown(Spread::from_values(rounds.iter().copied()), row.decimals));
            let shares = row.share.map(|share| {
                let of = |value: f64| format!("{value:.2} {}", share.limit.name());
                [of(share.theirs), of(share.ours)]
            });
            let [their_share, our_share] = shares.unwrap_or_default();
            let ratio = shown(row.pair.ratio(), 2);
            text += &format!(
                "| {} | {theirs} | {ours} | {ratio} | {their_share} | {our_share} |\n",
                row.name
            );
        }
        text
    }

    pub fn json(&self) -> Value {
        let results: Vec<Value> = self.rows().iter().map(Row::json).collect();
        let (first, machines) = (self.rounds.first(), self.rounds.iter());
        let machines: Vec<Value> = machines
            .map(|round| {
                json!({
                    "read_bytes_per_second": round.machine.read_bytes_per_second,
                    "int8_multiply_adds_per_second": round.machine.multiply_adds_per_second,
                    "instructions": round.machine.instructions,
                })
            })
            .collect();
        json!({
            "model": self.model,
            "file_bytes": self.file_bytes,
            "threads": self.threads,
            "rounds": self.rounds.len(),
            "llama_cpp": first.map(|round| &round.theirs.device),
            "loquat": first.map(|round| &round.ours.device),
            "machine_rounds": machines,
            "results": results,
        })
    }

    /// As `loquat bench --draw` reads it.
    pub fn figure(&self) -> Value {
        let panels = [
            (Panel::PromptTokens, "Prompts", "tokens of the prompt"),
            (Panel::Depth, "Decoding", "tokens in the context"),
            (Panel::Sequences, "Decoding together", "sequences"),
        ];
        let panels: Vec<Value> = panels
            .iter()
            .map(|(panel, title, x)| {
                json!({
                    "title": title,
                    "x": x,
                    "y": "tokens/s",
                    "lines": [
                        { "name": OURS, "points": self.points(*panel, |pair| &pair.ours) },
                        { "name": THEIRS, "points": self.points(*panel, |pair| &pair.theirs) },
                    ],
                })
            })
            .collect();
        let caption = format!(
            "{}, {} thread{}, medians of {} interleaved round{}",
            self.model,
            self.threads,
            plural(self.threads),
            self.rounds.len(),
            plural(self.rounds.len()),
        );
        json!({ "title": format!("{OURS} beside {THEIRS}"), "caption": caption, "panels": panels })
    }

    fn points(&self, panel: Panel, side: fn(&Pair) -> &Vec<f64>) -> Vec<(f64, f64)> {
        let rows = self.rows();
        let works = self.works.iter().zip(&rows);
        let points = works.flat_map(|(work, row)| {
            let places = work.panels.iter().filter(|(of, _)| *of == panel);
            let speed = Spread::from_values(side(&row.pair).iter().copied()).median;
            places.map(move |(_, x)| (*x, speed))
        });
        points.collect()
    }
}

impl Row {
    fn json(&self) -> Value {
        let spread = |spread: Spread| json!([spread.least, spread.median, spread.most]);
        let side = |rounds: &[f64]| json!({ "spread": spread(Spread::from_values(rounds.iter().copied())), "rounds": rounds });
        json!({
            "work": self.key,
            "unit": self.unit,
            "llama_cpp": side(&self.pair.theirs),
            "loquat": side(&self.pair.ours),
            "ratio": spread(self.pair.ratio()),
            "limit": self.share.map(|share| share.limit.name()),
            "llama_cpp_of_limit": self.share.map(|share| share.theirs),
            "loquat_of_limit": self.share.map(|share| share.ours),
        })
    }
}

fn plural(count: usize) -> &'static str {
    if count == 1 { "" } else { "s" }
}

/// `12.3 (11.9–12.8)`.
fn shown(spread: Spread, decimals: usize) -> String {
    let Spread {
        median,
        least,
        most,
    } = spread;
    format!("{median:.decimals$} ({least:.decimals$}–{most:.decimals$})")
}

#[cfg(test)]
mod tests {
    use super::super::rounds::tests::round;
    use super::super::works::{QUICK, WHOLE};
    use super::*;

    fn comparison() -> Comparison {
        Comparison {
            model: "m.gguf".to_owned(),
            file_bytes: 5_000_000,
            threads: 2,
            works: QUICK,
            rounds: vec![round(100.0, 200.0), round(50.0, 100.0), round(100.0, 150.0)],
        }
    }

    #[test]
    fn the_table_has_medians_ratios_spread_and_shares() {
        let text = comparison().markdown();
        for line in [
            "m.gguf, 5 MB, 2 threads; medians of 3 interleaved rounds",
            "read 1.0 (1.0–1.0) GB/s and made 10 (10–10) billion",
            "| prompt of 512, tokens/s | 100.0 (50.0–100.0) | 150.0 (100.0–200.0) \
             | 2.00 (1.50–2.00) | 0.01 int8 | 0.02 int8 |",
            "| ready, s (less is better) | 0.01 (0.01–0.02) |",
            "| peak memory, MB (less is better) | 1 (1–1) | 1 (1–1) | 1.00 (1.00–1.00) |  |  |",
        ] {
            assert!(text.contains(line), "no {line:?} in\n{text}");
        }
    }

    #[test]
    fn what_the_system_does_not_tell_is_left_out() {
        let mut silent = comparison();
        silent.rounds[1].theirs.peak_bytes = None;
        assert!(!silent.markdown().contains("peak memory"));
    }

    #[test]
    fn json_has_every_round() {
        let report = comparison().json();
        let prompt = &report["results"][0];
        assert_eq!(prompt["work"], "prompt:512");
        assert_eq!(prompt["llama_cpp"]["rounds"], json!([100.0, 50.0, 100.0]));
        assert_eq!(prompt["loquat"]["spread"], json!([100.0, 150.0, 200.0]));
        assert_eq!(prompt["ratio"], json!([1.5, 2.0, 2.0]));
        assert_eq!(prompt["limit"], "int8");
        assert_eq!(report["machine_rounds"].as_array().unwrap().len(), 3);
        let keys: Vec<_> = report["results"].as_array().unwrap().iter().collect();
        assert_eq!(keys.len(), QUICK.len() + 2);
    }

    #[test]
    fn each_work_is_a_point_of_both_lines() {
        let figure = comparison().figure();
        let points = |panel: usize, line: usize| &figure["panels"][panel]["lines"][line]["points"];
        assert_eq!(points(0, 0), &json!([[512.0, 150.0]]));
        assert_eq!(points(0, 1), &json!([[512.0, 100.0]]));
        assert_eq!(points(1, 0), &json!([[0.0, 15.0]]));
        assert_eq!(points(2, 0), &json!([[1.0, 15.0], [8.0, 30.0]]));
        let placed = WHOLE
            .iter()
            .chain(QUICK)
            .all(|work| !work.panels.is_empty());
        assert!(placed, "every work is drawn");
    }
}
