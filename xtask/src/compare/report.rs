//! The report of a comparison: a Markdown table, JSON with every round, and a figure.

use serde_json::{Value, json};

use super::rounds::{Pair, Round, Share, Spread};
use super::workloads::{Panel, Workload};

pub struct Comparison {
    pub model: String,
    pub file_bytes: u64,
    pub threads: usize,
    /// What both engines were held to; empty for everything the machine has.
    pub instruction_set: &'static str,
    pub workloads: &'static [Workload],
    /// At min one.
    pub rounds: Vec<Round>,
}

const LLAMA_CPP: &str = "llama.cpp";
const LOQUAT: &str = "loquat";
const IK_LLAMA_CPP: &str = "ik_llama.cpp";

/// A row of the table.
struct Row {
    name: String,
    /// The JSON key: the workload of a speed, otherwise the name of the figure.
    key: &'static str,
    unit: &'static str,
    decimals: usize,
    pair: Pair,
    share: Option<Share>,
    /// ik_llama.cpp's figures, if it was run and has the workload.
    ik_llama_cpp: Option<Pair>,
}

impl Comparison {
    fn rows(&self) -> Vec<Row> {
        let speeds = self
            .workloads
            .iter()
            .enumerate()
            .filter_map(|(index, workload)| {
                Some(Row {
                    name: format!("{}, tokens/s", workload.display_name),
                    key: workload.name,
                    unit: "tokens/s",
                    decimals: 1,
                    pair: Pair::from_rounds(&self.rounds, |measurement| {
                        Some(measurement.speeds[index])
                    })?,
                    share: Share::from_rounds(&self.rounds, index),
                    ik_llama_cpp: self.ik_llama_cpp(index),
                })
            });
        let ready = Pair::from_rounds(&self.rounds, |measurement| Some(measurement.ready_seconds));
        let ready = ready.map(|pair| Row {
            name: "time to ready, s (lower is better)".to_owned(),
            key: "ready",
            unit: "s",
            decimals: 2,
            pair,
            share: None,
            ik_llama_cpp: None,
        });
        let megabytes = |bytes: f64| bytes / 1e6;
        let peak = Pair::from_rounds(&self.rounds, |measurement| {
            measurement.peak_bytes.map(megabytes)
        });
        let peak = peak.map(|pair| Row {
            name: "peak memory, MB (lower is better)".to_owned(),
            key: "peak_memory",
            unit: "MB",
            decimals: 0,
            pair,
            share: None,
            ik_llama_cpp: None,
        });
        speeds.chain(ready).chain(peak).collect()
    }

    /// Speeds of a workload with ik_llama.cpp in the other engine's place.
    fn ik_llama_cpp(&self, index: usize) -> Option<Pair> {
        let theirs = self
            .rounds
            .iter()
            .map(|round| round.ik_llama_cpp.as_ref()?[index]);
        Some(Pair {
            llama_cpp: theirs.collect::<Option<_>>()?,
            loquat: self
                .rounds
                .iter()
                .map(|round| round.loquat.speeds[index])
                .collect(),
        })
    }

    /// The machine's limits over all rounds: GB/s read, billions of multiply-adds per second, and
    /// the instruction set.
    fn machine_limits(&self) -> (Spread, Spread, &str) {
        let machines = || self.rounds.iter().map(|round| &round.machine);
        let read = Spread::from_values(machines().map(|machine| machine.read_bytes_per_second));
        let multiply_adds =
            Spread::from_values(machines().map(|machine| machine.multiply_adds_per_second));
        let instructions = machines()
            .next()
            .map_or("", |machine| &machine.instructions);
        let billions = |spread: Spread| spread.map(|value| value / 1e9);
        (billions(read), billions(multiply_adds), instructions)
    }

    pub fn markdown(&self) -> String {
        let (read, multiply_adds, instructions) = self.machine_limits();
        let held = match self.instruction_set {
            "" => String::new(),
            name => format!(" Both engines are held to {name}."),
        };
        let mut text = format!(
            "\n{}, {:.0} MB, {} thread{}; medians of {} interleaved round{}, minimum and \
             maximum in parentheses. The machine reads {} GB/s and computes {} billion int8 \
             multiply-adds/s ({instructions}).{held}\n\n",
            self.model,
            self.file_bytes as f64 / 1e6,
            self.threads,
            plural(self.threads),
            self.rounds.len(),
            plural(self.rounds.len()),
            format_spread(read, 1),
            format_spread(multiply_adds, 0),
        );
        let limit = "of the limit";
        let with_ik = self.rounds.iter().any(|round| round.ik_llama_cpp.is_some());
        let ik = |cells: [String; 2]| {
            if with_ik {
                format!(" {} |", cells.join(" | "))
            } else {
                String::new()
            }
        };
        text += &format!(
            "| | {LLAMA_CPP} | {LOQUAT} | ratio | {LLAMA_CPP} {limit} | {LOQUAT} {limit} |{}\n",
            ik([IK_LLAMA_CPP.to_owned(), "ratio".to_owned()]),
        );
        text += &format!(
            "|---|---|---|---|---|---|{}\n",
            if with_ik { "---|---|" } else { "" }
        );
        for row in self.rows() {
            let [llama_cpp, loquat] = [&row.pair.llama_cpp, &row.pair.loquat].map(|rounds| {
                format_spread(Spread::from_values(rounds.iter().copied()), row.decimals)
            });
            let shares = row.share.map(|share| {
                let format_share = |value: f64| format!("{value:.2} {}", share.limit.name());
                [format_share(share.llama_cpp), format_share(share.loquat)]
            });
            let [llama_cpp_share, loquat_share] = shares.unwrap_or_default();
            let ratio = format_spread(row.pair.ratio(), 2);
            let ik_cells = row.ik_llama_cpp.as_ref().map(|pair| {
                let theirs = Spread::from_values(pair.llama_cpp.iter().copied());
                [
                    format_spread(theirs, row.decimals),
                    format_spread(pair.ratio(), 2),
                ]
            });
            text += &format!(
                "| {} | {llama_cpp} | {loquat} | {ratio} | {llama_cpp_share} | {loquat_share} |{}\n",
                row.name,
                ik(ik_cells.unwrap_or_default()),
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
            "instruction_set": self.instruction_set,
            "rounds": self.rounds.len(),
            "llama_cpp": first.map(|round| &round.llama_cpp.device),
            "loquat": first.map(|round| &round.loquat.device),
            "machine_rounds": machines,
            "results": results,
        })
    }

    /// The input of `loquat bench --draw`.
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
                        { "name": LOQUAT, "points": self.points(*panel, |pair| &pair.loquat) },
                        { "name": LLAMA_CPP, "points": self.points(*panel, |pair| &pair.llama_cpp) },
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
        json!({ "title": format!("{LOQUAT} and {LLAMA_CPP}"), "caption": caption, "panels": panels })
    }

    fn points(&self, panel: Panel, side: fn(&Pair) -> &Vec<f64>) -> Vec<(f64, f64)> {
        let rows = self.rows();
        let workloads = self.workloads.iter().zip(&rows);
        let points = workloads.flat_map(|(workload, row)| {
            let points = workload
                .panels
                .iter()
                .filter(|(workload_panel, _)| *workload_panel == panel);
            let speed = Spread::from_values(side(&row.pair).iter().copied()).median;
            points.map(move |(_, x)| (*x, speed))
        });
        points.collect()
    }
}

impl Row {
    fn json(&self) -> Value {
        let spread = |spread: Spread| json!([spread.min, spread.median, spread.max]);
        let side = |rounds: &[f64]| json!({ "spread": spread(Spread::from_values(rounds.iter().copied())), "rounds": rounds });
        json!({
            "work": self.key,
            "unit": self.unit,
            "llama_cpp": side(&self.pair.llama_cpp),
            "loquat": side(&self.pair.loquat),
            "ratio": spread(self.pair.ratio()),
            "ik_llama_cpp": self.ik_llama_cpp.as_ref().map(|pair| side(&pair.llama_cpp)),
            "ik_llama_cpp_ratio": self.ik_llama_cpp.as_ref().map(|pair| spread(pair.ratio())),
            "limit": self.share.map(|share| share.limit.name()),
            "llama_cpp_of_limit": self.share.map(|share| share.llama_cpp),
            "loquat_of_limit": self.share.map(|share| share.loquat),
        })
    }
}

fn plural(count: usize) -> &'static str {
    if count == 1 { "" } else { "s" }
}

/// `12.3 (11.9–12.8)`.
fn format_spread(spread: Spread, decimals: usize) -> String {
    let Spread { median, min, max } = spread;
    format!("{median:.decimals$} ({min:.decimals$}–{max:.decimals$})")
}

#[cfg(test)]
mod tests {
    use super::super::rounds::tests::round;
    use super::super::workloads::{FULL, QUICK};
    use super::*;

    fn comparison() -> Comparison {
        Comparison {
            model: "m.gguf".to_owned(),
            file_bytes: 5_000_000,
            threads: 2,
            instruction_set: "",
            workloads: QUICK,
            rounds: vec![round(100.0, 200.0), round(50.0, 100.0), round(100.0, 150.0)],
        }
    }

    #[test]
    fn table_has_medians_ratios_and_shares() {
        let text = comparison().markdown();
        for line in [
            "m.gguf, 5 MB, 2 threads; medians of 3 interleaved rounds",
            "reads 1.0 (1.0–1.0) GB/s and computes 10 (10–10) billion",
            "| prompt of 512, tokens/s | 100.0 (50.0–100.0) | 150.0 (100.0–200.0) \
             | 2.00 (1.50–2.00) | 0.01 int8 | 0.02 int8 |",
            "| time to ready, s (lower is better) | 0.01 (0.01–0.02) |",
            "| peak memory, MB (lower is better) | 1 (1–1) | 1 (1–1) | 1.00 (1.00–1.00) |  |  |",
        ] {
            assert!(text.contains(line), "no {line:?} in\n{text}");
        }
    }

    #[test]
    fn ik_llama_cpp_has_its_own_columns() {
        let mut comparison = comparison();
        assert!(!comparison.markdown().contains(IK_LLAMA_CPP));
        comparison.instruction_set = "avx2";
        for round in &mut comparison.rounds {
            round.ik_llama_cpp = Some(vec![Some(50.0), Some(5.0), None]);
        }
        let text = comparison.markdown();
        for part in [
            "held to avx2",
            "| 0.02 int8 | 50.0 (50.0–50.0) | 3.00 (2.00–4.00) |\n",
            "| peak memory, MB (lower is better) | 1 (1–1) | 1 (1–1) | 1.00 (1.00–1.00) |  |  |  |  |",
        ] {
            assert!(text.contains(part), "no {part:?} in\n{text}");
        }
        assert_eq!(
            comparison.json()["results"][0]["ik_llama_cpp_ratio"],
            json!([2.0, 3.0, 4.0])
        );
    }

    #[test]
    fn missing_peak_memory_is_left_out() {
        let mut comparison = comparison();
        comparison.rounds[1].llama_cpp.peak_bytes = None;
        assert!(!comparison.markdown().contains("peak memory"));
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
    fn each_workload_is_a_point_of_both_lines() {
        let figure = comparison().figure();
        let points = |panel: usize, line: usize| &figure["panels"][panel]["lines"][line]["points"];
        assert_eq!(points(0, 0), &json!([[512.0, 150.0]]));
        assert_eq!(points(0, 1), &json!([[512.0, 100.0]]));
        assert_eq!(points(1, 0), &json!([[0.0, 15.0]]));
        assert_eq!(points(2, 0), &json!([[1.0, 15.0], [8.0, 30.0]]));
        let all_drawn = FULL
            .iter()
            .chain(QUICK)
            .all(|workload| !workload.panels.is_empty());
        assert!(all_drawn);
    }
}
