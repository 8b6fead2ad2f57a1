//! Every scenario of `loquat bench` on a tiny model: the shape of its report, and what holds at any
//! speed.

use std::path::Path;

use serde_json::Value;

use crate::support::{Altered, Outcome, golden, loquat};

fn bench(flags: &[&str]) -> Outcome {
    bench_without_model(&[&[golden("llama").as_str()], flags].concat())
}

fn bench_without_model(flags: &[&str]) -> Outcome {
    loquat([&["bench"], flags].concat())
}

#[track_caller]
fn text(flags: &[&str]) -> String {
    bench(flags).quiet()
}

#[track_caller]
fn json(flags: &str) -> Value {
    let flags: Vec<&str> = flags.split(' ').chain(["--json"]).collect();
    serde_json::from_str(&text(&flags)).unwrap()
}

/// The JSON report and the figure.
#[track_caller]
fn report(scenario: &str, flags: &[&str]) -> (Value, String) {
    report_on(&golden("llama"), scenario, flags)
}

#[track_caller]
fn report_on(model: &str, scenario: &str, flags: &[&str]) -> (Value, String) {
    let directory = tempfile::tempdir().unwrap();
    let figure = directory.path().join("figure.svg");
    let output = ["--json", "--svg", figure.to_str().unwrap()];
    let report = bench_without_model(&[&[model], flags, &output].concat()).quiet();
    let report: Value = serde_json::from_str(&report).unwrap();
    let name = Path::new(model).file_name().unwrap().to_str().unwrap();
    assert_eq!(report["scenario"], scenario);
    assert_eq!(report["model"], name);
    assert!(report["device"].as_str().unwrap().contains("cpu"));
    assert!(report["load_seconds"].as_f64().unwrap() > 0.0);
    let figure = std::fs::read_to_string(figure).unwrap();
    assert!(figure.starts_with("<svg"), "{figure}");
    let caption = format!("{name} on cpu");
    assert!(figure.contains(&caption), "no caption in {figure}");
    (report, figure)
}

#[track_caller]
fn number(value: &Value, field: &str) -> f64 {
    let number = value[field].as_f64();
    number.unwrap_or_else(|| panic!("no number {field} in {value}"))
}

#[track_caller]
fn assert_spread(value: &Value) {
    let parts = ["p50", "p95", "p99", "max"].map(|part| number(value, part));
    assert!(parts[0] >= 0.0 && parts.is_sorted(), "{value}");
}

#[test]
fn engine_overhead_is_reported() {
    let report = json("--prompt-tokens 8 --decode-tokens 16 --batch 1,4 --rounds 1");
    assert_eq!(report["scenario"], "compare");
    for row in report["results"].as_array().unwrap() {
        match row["work"].as_str().unwrap() {
            // Between two steps; this prompt is one.
            "prompt" => assert_eq!(row["engine_overhead_us"], Value::Null, "{row}"),
            _ => assert!(number(row, "engine_overhead_us") > 0.0, "{row}"),
        }
    }
}

#[test]
fn selected_workloads_are_measured_once() {
    // The longest is a prompt, whose warm-up is longer still.
    let report = json("--work prompt:32,decode:4@1,decode:4@16x3");
    assert_eq!(report["scenario"], "works");
    assert!(number(&report, "ready_seconds") >= number(&report, "load_seconds"));
    if cfg!(target_os = "linux") {
        assert!(number(&report, "peak_bytes") > 1e6);
    }
    let results = report["results"].as_array().unwrap();
    let names: Vec<_> = results.iter().map(|result| &result["work"]).collect();
    assert_eq!(names, ["prompt:32", "decode:4@1", "decode:4@16x3"]);
    for result in results {
        assert!(number(result, "tokens_per_second") > 0.0, "{result}");
    }
    // Two layers of q, k, v, o, gate, up and down, and the head.
    let products = 2 * (64 * 64 + 2 * 32 * 64 + 64 * 64 + 3 * 64 * 128) + 288 * 64;
    assert_eq!(results[1]["multiply_adds_per_token"], f64::from(products));
    let read = |index: usize| number(&results[index], "read_bytes_per_token");
    assert!(read(2) < read(1), "three share the weights");
}

#[test]
fn machine_needs_no_model() {
    let flags = ["--machine", "--threads", "1", "--json"];
    let report: Value = serde_json::from_str(&bench_without_model(&flags).quiet()).unwrap();
    assert_eq!(
        (&report["scenario"], &report["threads"]),
        (&"machine".into(), &1.into())
    );
    assert!(number(&report, "read_bytes_per_second") > 0.0);
    assert!(number(&report, "int8_multiply_adds_per_second") > 0.0);
}

#[test]
fn described_figure_is_drawn() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (described, drawn) = (path("figure.json"), path("figure.svg"));
    let draw = ["--draw", &described, "--svg", &drawn];
    let refused = |flags: &[&str], words: &[&str]| {
        bench_without_model(flags).refused(2, words);
    };
    refused(&draw, &["--draw", "figure.json"]);
    std::fs::write(&described, "{").unwrap();
    refused(&draw, &["--draw", "JSON"]);
    std::fs::write(&described, r#"{"title": "t"}"#).unwrap();
    refused(&draw, &["--draw", "`panels`"]);
    let panel =
        r#"{"title": "p", "x": "a", "y": "b", "lines": [{"name": "l", "points": [[1, 2]]}]}"#;
    let figure = format!(r#"{{"title": "t", "caption": "the caption", "panels": [{panel}]}}"#);
    std::fs::write(&described, figure).unwrap();
    assert_eq!(bench_without_model(&draw).quiet(), "");
    let svg = std::fs::read_to_string(&drawn).unwrap();
    assert!(
        svg.starts_with("<svg") && svg.contains("the caption"),
        "{svg}"
    );

    refused(&["--draw", &described], &["--svg"]);
    refused(&["model", "--work", "prompt"], &["--work", "prompt:512"]);
    refused(&["model", "--machine"], &["--machine"]);
    refused(
        &["model", "--work", "prompt:8", "--rounds", "2"],
        &["--work", "--rounds"],
    );
    refused(&["--machine", "--svg", &drawn], &["--machine", "--svg"]);
    refused(
        &["--machine", "--requests", "5"],
        &["--machine", "--requests"],
    );
    refused(
        &["model", "--kv-format", "f1"],
        &["--kv-format", "f32, f16, bf16, q8"],
    );
}

#[test]
fn http_is_compared_with_session() {
    let report = json("--http --batch 3 --decode-tokens 8 --rounds 2");
    assert_eq!(report["scenario"], "http");
    let one = &report["one_client"];
    assert!(number(one, "ratio") > 0.0);
    for rounds in ["http_rounds", "session_rounds"] {
        assert_eq!(one[rounds].as_array().unwrap().len(), 2, "{rounds}");
    }
    let many = &report["many_clients"];
    assert_eq!(many["clients"], 3);
    for spread in ["token_to_socket_us", "first_token_ms"] {
        assert_spread(&many[spread]);
    }
    // On a busy machine all tokens of a stream may arrive in one read.
    if !many["inter_token_ms"]["p50"].is_null() {
        assert_spread(&many["inter_token_ms"]);
    }
    let start = &report["start"];
    assert!(number(start, "ready_seconds") > 0.0);
    if cfg!(target_os = "linux") {
        assert!(number(start, "resident_bytes") > number(start, "resident_bytes_above_session"));
    }
}

#[test]
fn startup_excludes_prompt_time() {
    let report = json("--start --rounds 2 --context 128 --memory 1GiB");
    assert_eq!(report["scenario"], "start");
    for rounds in ["first_token_ms_rounds", "prompt_ms_rounds"] {
        assert_eq!(report[rounds].as_array().unwrap().len(), 2, "{rounds}");
    }
    let [whole, prompt, start] =
        ["first_token_ms", "prompt_ms", "start_ms"].map(|part| number(&report, part));
    assert!(whole > 0.0 && prompt > 0.0, "{report}");
    assert!((prompt + start - whole).abs() < 1e-6, "{report}");

    bench(&["--start", "--context", "2"]).refused(1, &["the startup"]);
}

#[test]
fn synthetic_models_are_measured_and_saved() {
    let small = "--prompt-tokens 8 --decode-tokens 4 --batch 1,2 --rounds 1 --json";
    let small: Vec<&str> = small.split(' ').collect();
    for format in ["bf16", "q4_k_m", "mlx4"] {
        let recipe = format!("llama-tiny:{format}");
        let flags = [&["--synthetic", &recipe], &small[..]].concat();
        let report = bench_without_model(&flags).quiet();
        let report: Value = serde_json::from_str(&report).unwrap();
        assert_eq!(report["model"], recipe);
        let rows = report["results"].as_array().unwrap();
        assert_eq!(rows.len(), 3);
        for row in rows {
            assert!(number(row, "engine_tokens_per_second") > 0.0, "{row}");
        }
    }
    let folder = tempfile::tempdir().unwrap();
    for (recipe, name) in [
        ("llama-tiny:q4_0", "saved.gguf"),
        ("llama-tiny:mlx8", "saved"),
    ] {
        let path = folder.path().join(name);
        let path = path.to_str().unwrap();
        let flags = ["--synthetic", recipe, "--save", path];
        let written = bench_without_model(&flags).quiet();
        assert!(
            written.contains(recipe) && written.contains(path),
            "{written}"
        );
        let report = bench_without_model(&[&[path], &small[..]].concat()).quiet();
        let report: Value = serde_json::from_str(&report).unwrap();
        assert_eq!(report["model"], name);
    }
}

#[test]
fn invalid_synthetic_models_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let gguf = folder.path().join("saved.gguf");
    let gguf = gguf.to_str().unwrap();
    for (flags, words) in [
        (&["--synthetic", "llama-2b"][..], ["llama-2b", "qwen3-0.6b"]),
        (&["--synthetic", "llama-1b:q3"], ["q3", "q4_k_m"]),
        (
            &["llama", "--synthetic", "llama-1b"],
            ["MODEL", "--synthetic"],
        ),
        (
            &["--synthetic", "llama-1b", "--constrained"],
            ["--synthetic", "--constrained"],
        ),
        (
            &["--synthetic", "llama-1b", "--http"],
            ["--synthetic", "--http"],
        ),
        (&["--save", gguf], ["--synthetic", "required"]),
        (
            &["--synthetic", "llama-tiny:mlx4", "--save", gguf],
            ["does not support `mlx4`", "q4_k_m"],
        ),
        (
            &["--synthetic", "llama-tiny", "--save", gguf, "--json"],
            ["--save", "--json"],
        ),
    ] {
        bench_without_model(flags).refused(2, &words);
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

const TINY: [&str; 6] = [
    "--prompt-tokens=8,16",
    "--decode-tokens=4",
    "--depth=3",
    "--batch=1,2",
    "--rounds=2",
    "--json",
];

#[test]
fn every_size_is_measured() {
    let report = text(&TINY);
    let report: Value = serde_json::from_str(&report).unwrap();
    assert_eq!(report["model"], "llama");
    assert!(report["load_seconds"].as_f64().unwrap() > 0.0);
    let rows = report["results"].as_array().unwrap();
    let sizes: Vec<_> = (rows.iter())
        .map(|row| {
            let number = |field: &str| row[field].as_u64().unwrap();
            let work = row["work"].as_str().unwrap();
            (work, number("tokens"), number("depth"), number("batch"))
        })
        .collect();
    let expected = [
        ("prompt", 8, 0, 1),
        ("prompt", 16, 0, 1),
        ("decode", 4, 3, 1),
        ("decode", 4, 3, 2),
    ];
    assert_eq!(sizes, expected);
    for row in rows {
        for side in ["engine", "session"] {
            let rounds = row[format!("{side}_rounds")].as_array().unwrap();
            assert_eq!(rounds.len(), 2);
            let median = row[format!("{side}_tokens_per_second")].as_f64().unwrap();
            let mean = rounds.iter().map(|v| v.as_f64().unwrap()).sum::<f64>() / 2.0;
            assert!(median > 0.0 && (median / mean - 1.0).abs() < 1e-9, "{row}");
        }
        assert!(row["ratio"].as_f64().unwrap() > 0.0, "{row}");
    }
}

#[test]
fn overhead_table_has_all_rows() {
    let table = text(&[
        "--prompt-tokens=8",
        "--decode-tokens=4",
        "--batch=2",
        "--rounds=1",
    ]);
    for word in [
        "engine",
        "session",
        "ratio",
        "prompt 8 ",
        "decode 4 × 2 at 1",
    ] {
        assert!(table.contains(word), "no {word:?} in:\n{table}");
    }
}

#[test]
fn workloads_that_do_not_fit_are_refused() {
    for (flags, words) in [
        (
            ["--prompt-tokens=512", "-v"],
            ["prompt 512", "context of 512"],
        ),
        (
            ["--prompt-tokens=8", "--depth=500"],
            ["at 500", "context of 512"],
        ),
        (
            ["--prompt-tokens=18446744073709551615", "-v"],
            ["prompt 18446744073709551615", "context of 512"],
        ),
        (
            ["--prompt-tokens=8", "--depth=18446744073709551615"],
            ["at 18446744073709551615", "context of 512"],
        ),
        (
            ["--prompt-tokens=8", "--batch=600"],
            ["--batch 600", "at most 512"],
        ),
        (
            ["--prompt-tokens=0", "-v"],
            ["--prompt-tokens", "at least 1"],
        ),
        (
            ["--prompt-tokens=8", "--rounds=0"],
            ["--rounds", "at least 1"],
        ),
        (
            ["--prompt-tokens=8,x", "-v"],
            ["--prompt-tokens", "at least 1"],
        ),
    ] {
        bench(&flags).refused(2, &words);
    }
}

const CLIENTS: [&str; 8] = [
    "--clients",
    "1,3",
    "--requests",
    "9",
    "--prompt-range",
    "4-24",
    "--output-range",
    "6-12",
];

#[test]
fn clients_are_measured_at_every_count() {
    let (report, figure) = report("clients", &CLIENTS);
    let rows = report["results"].as_array().unwrap();
    let counts: Vec<_> = rows.iter().map(|row| number(row, "clients")).collect();
    assert_eq!(counts, [1.0, 3.0]);
    for row in rows {
        assert_eq!(row["requests"], 9);
        for field in [
            "seconds",
            "generated_tokens_per_second",
            "prompt_tokens_per_second",
            "step_ms",
            "engine_overhead_us",
            "steps",
        ] {
            assert!(number(row, field) > 0.0, "{field}: {row}");
        }
        assert_spread(&row["first_token_ms"]);
        assert_spread(&row["inter_token_ms"]);
        let cache = &row["cache"];
        assert_eq!(number(cache, "hits") + number(cache, "misses"), 9.0);
    }
    for word in ["Time to first token", "p99", "tokens per second"] {
        assert!(figure.contains(word), "no {word}");
    }

    let table = text(&CLIENTS);
    for word in ["9 requests", "prompts of 4-24", "clients", "p99"] {
        assert!(table.contains(word), "no {word:?} in:\n{table}");
    }
}

#[test]
fn clients_can_run_for_seconds() {
    let flags = [&CLIENTS[..2], &["--seconds", "1"], &CLIENTS[4..]].concat();
    let (report, _) = report("clients", &flags);
    for row in report["results"].as_array().unwrap() {
        assert!(number(row, "seconds") >= 1.0, "{row}");
        assert!(number(row, "requests") >= number(row, "clients"), "{row}");
    }
}

#[test]
fn prefill_interference_is_measured() {
    let flags = "--prefill-interference 200 --batch 1,2 --decode-tokens 12 --rounds 2";
    let flags: Vec<_> = flags.split(' ').collect();
    // A long context, so that streams outlast the prefill on a busy machine.
    let model = Altered::endless();
    let (report, figure) = report_on(model.path(), "prefill-interference", &flags);
    assert_eq!(report["prefill_tokens"], 200);
    let rows = report["results"].as_array().unwrap();
    let batches: Vec<_> = rows.iter().map(|row| number(row, "batch")).collect();
    assert_eq!(batches, [1.0, 2.0]);
    for row in rows {
        let rounds = row["rounds"].as_array().unwrap();
        assert_eq!(rounds.len(), 2);
        for round in rounds {
            for field in [
                "before_tokens_per_second",
                "prefill_first_token_ms",
                "prefill_alone_first_token_ms",
            ] {
                assert!(number(round, field) > 0.0, "{field}: {round}");
            }
            assert_spread(&round["before_inter_token_ms"]);
            assert_spread(&round["during_inter_token_ms"]);
        }
        let worst = rounds
            .iter()
            .map(|round| number(&round["during_inter_token_ms"], "max"));
        let worst = worst.fold(0.0, f64::max);
        assert_eq!(number(row, "during_inter_token_worst_ms"), worst);
    }
    assert!(figure.contains("prefill"), "no label in {figure}");
    let table = bench_without_model(&[&[model.path()], &flags[..]].concat()).quiet();
    assert!(table.contains("slowdown"), "{table}");
}

#[test]
fn conversation_runs_with_and_without_cache() {
    let flags = "--turns 4 --user-tokens 20 --decode-tokens 12 --rounds 1";
    let flags: Vec<_> = flags.split(' ').collect();
    let (report, figure) = report("turns", &flags);
    for (side, keeps) in [("cache", true), ("no_cache", false)] {
        let turns = report[side]["turns"].as_array().unwrap();
        assert_eq!(turns.len(), 4);
        for (index, turn) in turns.iter().enumerate() {
            assert_eq!(turn["turn"], index + 1);
            assert_eq!(turn["prompt_tokens"], 20 + index * 32, "{turn}");
            // All earlier tokens except the last, which was not computed.
            let cached = if keeps {
                (index * 32).saturating_sub(1)
            } else {
                0
            };
            assert_eq!(turn["cached_tokens"], cached, "{turn}");
            assert!(number(turn, "first_token_ms") > 0.0);
        }
        let (first, last) = (&turns[0], &turns[3]);
        let growth = number(last, "first_token_ms") / number(first, "first_token_ms");
        // JSON numbers lose their last bit.
        let reported = number(&report[side], "last_to_first");
        assert!(
            (reported / growth - 1.0).abs() < 1e-12,
            "{reported} {growth}"
        );
    }
    assert!(figure.contains("without the prefix cache"));
    assert!(text(&flags).contains("without the cache"));
}

#[test]
fn contended_decoding_is_measured() {
    let flags = ["--contended=1", "--decode-tokens=8", "--rounds=2"];
    let report = json(&flags.join(" "));
    assert_eq!(report["scenario"], "contended");
    assert_eq!(report["busy_threads"], 1);
    for side in ["alone", "contended"] {
        assert!(number(&report, &format!("{side}_tokens_per_second")) > 0.0);
        assert_eq!(
            report[format!("{side}_rounds")].as_array().unwrap().len(),
            2
        );
    }
    assert!(number(&report, "ratio") > 0.0);
    assert!(text(&flags).contains("busy threads: 1"));
}

#[test]
fn encoding_is_measured() {
    let model = golden("../goldens-vision/qwen3_vl");
    let flags = [model.as_str(), "--encode=64", "--rounds=3"];
    let report = bench_without_model(&[&flags[..], &["--json"]].concat()).quiet();
    let report: Value = serde_json::from_str(&report).unwrap();
    assert_eq!(report["scenario"], "encode");
    assert!(number(&report, "seconds") > 0.0);
    assert_eq!(report["seconds_rounds"].as_array().unwrap().len(), 3);
    // Patches of 4 × 4 pixels, of which four become a position.
    assert_eq!(report["patches"], 256);
    assert_eq!(report["positions"], 64);
    assert!(bench_without_model(&flags).quiet().contains("positions"));
}

#[test]
fn impossible_encoding_is_refused() {
    let model = golden("../goldens-vision/qwen3_vl");
    bench_without_model(&[model.as_str(), "--encode=63"])
        .refused(2, &["`--encode 63`", "multiple of 8"]);
    bench(&["--encode=64"]).refused(2, &["`--encode`", "images"]);
}

#[test]
fn constrained_decoding_is_measured() {
    let flags = [
        "--constrained",
        "--batch=1,3",
        "--decode-tokens=24",
        "--rounds=2",
    ];
    let report = json(&flags.join(" "));
    assert_eq!(report["scenario"], "constrained");
    assert_eq!(report["tokens"], 24);
    let results = report["results"].as_array().unwrap();
    for (row, batch) in results.iter().zip([1, 3]) {
        assert_eq!(row["batch"], batch);
        for speed in ["free", "constrained"] {
            assert!(
                number(row, &format!("{speed}_tokens_per_second")) > 0.0,
                "{row}"
            );
            assert_eq!(row[format!("{speed}_rounds")].as_array().unwrap().len(), 2);
        }
        assert!(
            number(row, "ratio") > 0.0 && number(row, "mask_us") > 0.0,
            "{row}"
        );
        let forced = number(row, "forced_share");
        assert!((0.0..0.5).contains(&forced), "{row}");
        assert!(number(row, "choices_ratio") > 0.0, "{row}");
    }
    assert_eq!(results.len(), 2);
    let table = text(&flags);
    for word in ["free", "forced %", "mask µs", "decode 24 × 3"] {
        assert!(table.contains(word), "no {word:?} in:\n{table}");
    }
}

#[test]
fn soak_checks_pass() {
    let (report, figure) = report("soak", &["--soak", "2", "--seed", "3"]);
    let checks = report["checks"].as_array().unwrap();
    assert_eq!(checks.len(), 7);
    for check in checks {
        assert_ne!(check["outcome"], "failed", "{check}");
    }
    let totals = &report["totals"];
    assert_eq!(report["seen_by_clients"]["accepted"], totals["submitted"]);
    let ends = ["finished", "failed", "cancelled", "timed_out"].map(|end| number(totals, end));
    assert_eq!(ends.iter().sum::<f64>(), number(totals, "submitted"));
    assert!(!report["samples"].as_array().unwrap().is_empty());
    assert!(figure.contains("resident"));
}

/// A few seconds, or a minute with `LOQUAT_FULL=1`.
#[test]
fn chaos_clients_leave_nothing_behind() {
    let full = std::env::var_os("LOQUAT_FULL").is_some();
    let seconds = if full { "60" } else { "3" };
    let report = json(&format!("--soak {seconds}"));
    for check in report["checks"].as_array().unwrap() {
        let is_memory = check["name"].as_str().unwrap().contains("memory is flat");
        let measured = !is_memory || (full && cfg!(target_os = "linux"));
        let expected = if measured { "passed" } else { "not measured" };
        assert_eq!(check["outcome"], expected, "{check}");
    }
    // In a short run on a busy machine not every kind of event has to happen.
    let events = [
        ("seen_by_clients", "finished"),
        ("seen_by_clients", "abandoned"),
        ("seen_by_clients", "stalls"),
        ("seen_by_clients", "resent"),
        ("seen_by_clients", "oversized"),
        ("totals", "cancelled"),
        ("totals", "cached_tokens"),
        ("cache", "hits"),
        ("cache", "evictions"),
    ];
    for (section, field) in events.into_iter().take(if full { 9 } else { 1 }) {
        let count = report[section][field].as_u64().unwrap();
        assert!(count > 0, "no {field} in {section}");
    }
}

#[test]
fn soak_prints_its_checks() {
    let table = text(&["--soak", "1"]);
    for word in [
        "24 clients for 1 s",
        "submitted",
        "passed",
        "the session holds no memory",
    ] {
        assert!(table.contains(word), "no {word:?} in:\n{table}");
    }
}

#[test]
fn conflicting_flags_are_refused() {
    for (flags, words) in [
        ("--clients 2 --turns 3", ["--clients", "--turns"]),
        (
            "--soak 2 --prefill-interference 9",
            ["--soak", "--prefill-interference"],
        ),
        ("--constrained --turns 3", ["--constrained", "--turns"]),
        ("--constrained --depth 2", ["--constrained", "--depth"]),
        ("--constrained --svg a.svg", ["--constrained", "--svg"]),
        ("--contended 1 --svg a.svg", ["--contended", "--svg"]),
        ("--contended 1 --depth 2", ["--contended", "--depth"]),
        ("--contended 1 --batch 8", ["--contended", "--batch"]),
        ("--contended 1 --seed 4", ["--contended", "--seed"]),
        ("--encode 64 --depth 2", ["--encode", "--depth"]),
        (
            "--encode 64 --decode-tokens 2",
            ["--encode", "--decode-tokens"],
        ),
        (
            "--work prompt:8 --user-tokens 9",
            ["--work", "--user-tokens"],
        ),
        ("--http --kv-format q8", ["--http", "--kv-format"]),
        (
            "--constrained --max-slowdown 2",
            ["--constrained", "--max-slowdown"],
        ),
        (
            "--clients 2 --prompt-tokens 9",
            ["--clients", "--prompt-tokens"],
        ),
        (
            "--prefill-interference 9 --depth 2",
            ["--prefill-interference", "--depth"],
        ),
        ("--clients 2 --batch 2", ["--clients", "--batch"]),
        ("--soak 2 --rounds 2", ["--soak", "--rounds"]),
        ("--soak 2 --decode-tokens 2", ["--soak", "--decode-tokens"]),
        (
            "--clients 2 --requests 9 --seconds 2",
            ["--requests", "--seconds"],
        ),
        ("--requests 9", ["--clients", "not provided"]),
        (
            "--prefill-interference 9 --prompt-range 1-2",
            ["--prefill-interference", "--prompt-range"],
        ),
        (
            "--turns 9 --output-range 1-2",
            ["--turns", "--output-range"],
        ),
        (
            "--clients 2 --user-tokens 2",
            ["--clients", "--user-tokens"],
        ),
        ("--user-tokens 2", ["--turns", "not provided"]),
        ("--svg figure.svg", ["--clients", "not provided"]),
        ("--seed 4", ["--clients", "not provided"]),
        ("--clients 0", ["--clients", "at least 1"]),
        (
            "--clients 2 --prompt-range 9-2",
            ["--prompt-range", "such as 16-512"],
        ),
    ] {
        is_refused(flags, &words);
    }
}

#[test]
fn sizes_that_do_not_fit_are_refused() {
    for (flags, words) in [
        ("--clients 5000", &["`--clients 5000`", "at most 1024"][..]),
        (
            "--clients 2,8 --requests 7",
            &["`--requests 7`", "at least 8"],
        ),
        ("--clients 2", &["16-512", "32-128", "context of 512"]),
        (
            "--prefill-interference 512",
            &["`--prefill-interference 512`", "context of 512"],
        ),
        (
            "--prefill-interference 18446744073709551615",
            &["context of 512"],
        ),
        (
            "--prefill-interference 100 --decode-tokens 500",
            &["context of 512"],
        ),
        (
            "--prefill-interference 100 --batch 600",
            &["`--batch 600`", "below 512"],
        ),
        (
            "--constrained --decode-tokens 496",
            &["`--decode-tokens`", "context of 512"],
        ),
        (
            "--constrained --decode-tokens 18446744073709551615",
            &["context of 512"],
        ),
        ("--turns 5", &["`--turns 5`", "64 + 64", "context of 512"]),
        ("--turns 18446744073709551615", &["context of 512"]),
        ("--soak 2 --context 32", &["context (32)", "at least 64"]),
        (
            "--turns 2 --svg missing/figure.svg",
            &["missing/figure.svg"],
        ),
    ] {
        is_refused(flags, words);
    }
}

#[track_caller]
fn is_refused(flags: &str, words: &[&str]) {
    let refused = bench(&flags.split(' ').collect::<Vec<_>>());
    assert!(
        [1, 2].contains(&refused.code),
        "{flags}: {}",
        refused.stderr
    );
    refused.refused(refused.code, words);
}
