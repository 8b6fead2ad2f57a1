//! Times what happens between opening a model file and its first tokens.
//!
//! `cargo run --release -p loquat-cpu --example load_phases MODEL [rounds] [pause_ms]`
//!
//! Every measurement runs in a process of its own, because a process reuses memory that it has
//! touched before. Measurements alternate, so that all run under the same conditions. The lower
//! bounds show how much of the time is the machine's: reading the file from the page cache, and the
//! first touch of as much memory. In a virtual machine that returns free memory to its host, the
//! latter varies; a pause before each measurement gives it the time to do so.

use std::error::Error;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use loquat_cpu::CpuBackend;
use loquat_session::{Backend, Emit, SequenceId, Session, SessionOptions, StepBatch, StepOutput};
use loquat_testkit::goldens;

/// Names the measurement to the process that runs it.
const PHASE: &str = "LOQUAT_LOAD_PHASE";
const PHASES: [(&str, Measure); 3] = [
    ("read", read_file),
    ("touch", touch_memory),
    ("open", open_model),
];

/// Prints the seconds of one or more phases, by name.
type Measure = fn(&Path) -> Result<(), Box<dyn Error>>;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let path = args.next().ok_or("the path of a model is missing")?;
    if let Ok(name) = std::env::var(PHASE) {
        let phase = PHASES.iter().find(|(phase, _)| *phase == name);
        let (_, measure) = phase.ok_or("an unknown phase")?;
        return measure(Path::new(&path));
    }
    let rounds: usize = args.next().map_or(Ok(5), |rounds| rounds.parse())?;
    let pause: u64 = args.next().map_or(Ok(0), |pause| pause.parse())?;
    let mut times: Vec<(String, Vec<f64>)> = Vec::new();
    for _ in 0..rounds {
        for (phase, _) in PHASES {
            std::thread::sleep(Duration::from_millis(pause));
            let child = Command::new(std::env::current_exe()?)
                .arg(&path)
                .env(PHASE, phase)
                .output()?;
            if !child.status.success() {
                return Err(String::from_utf8_lossy(&child.stderr).into());
            }
            for line in BufReader::new(&*child.stdout).lines() {
                let line = line?;
                let (name, seconds) = line.split_once('\t').ok_or("no time in a line")?;
                let seconds: f64 = seconds.parse()?;
                match times.iter_mut().find(|(known, _)| known == name) {
                    Some((_, all)) => all.push(seconds),
                    None => times.push((name.to_owned(), vec![seconds])),
                }
            }
        }
    }
    println!("{path}, {rounds} rounds, seconds");
    println!("| phase | median | lowest | highest |");
    println!("|---|---|---|---|");
    for (name, mut all) in times {
        all.sort_by(f64::total_cmp);
        let (low, high) = (all[0], all[all.len() - 1]);
        println!(
            "| {name} | {:.3} | {low:.3} | {high:.3} |",
            all[all.len() / 2]
        );
    }
    Ok(())
}

fn print(name: &str, started: Instant) {
    println!("{name}\t{}", started.elapsed().as_secs_f64());
}

/// Runs `body` with each thread's half of `0..len`.
fn on_threads(len: usize, body: impl Fn(usize, usize) + Sync) {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let share = len.div_ceil(threads);
    std::thread::scope(|scope| {
        for index in 0..threads {
            let body = &body;
            scope.spawn(move || body((index * share).min(len), ((index + 1) * share).min(len)));
        }
    });
}

fn read_file(path: &Path) -> Result<(), Box<dyn Error>> {
    let len = usize::try_from(std::fs::metadata(path)?.len())?;
    let started = Instant::now();
    on_threads(len, |start, end| {
        let mut buffer = vec![0; 1 << 20];
        let file = File::open(path).and_then(|mut file| {
            file.seek(SeekFrom::Start(start as u64))?;
            Ok(file)
        });
        let mut part = match file {
            Ok(file) => file.take((end - start) as u64),
            Err(error) => panic!("{error}"),
        };
        while part.read(&mut buffer).is_ok_and(|read| read > 0) {}
    });
    print("lower bound: reading the file, all threads", started);
    Ok(())
}

fn touch_memory(path: &Path) -> Result<(), Box<dyn Error>> {
    const PAGE: usize = 4096;
    let len = usize::try_from(std::fs::metadata(path)?.len())?;
    let started = Instant::now();
    let mut map = memmap2::MmapMut::map_anon(len)?;
    #[cfg(target_os = "linux")]
    map.advise(memmap2::Advice::HugePage)?;
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for part in map.chunks_mut(len.div_ceil(threads)) {
            scope.spawn(move || part.iter_mut().step_by(PAGE).for_each(|byte| *byte = 1));
        }
    });
    print(
        "lower bound: first touch of as much memory, all threads",
        started,
    );
    Ok(())
}

fn open_model(path: &Path) -> Result<(), Box<dyn Error>> {
    let started = Instant::now();
    let source = goldens::source(path)?;
    print("file header and binding", started);
    let options = SessionOptions {
        context: Some(512),
        max_sequences: 1,
        ..SessionOptions::default()
    };
    let opening = Instant::now();
    let mut session = CpuBackend::AUTO.open(source, &options, &mut |_| {})?;
    print("opening the session", opening);
    let sequence = session.create()?;
    let mut next = |name: &str| -> Result<(), Box<dyn Error>> {
        let step = Instant::now();
        decode(session.as_mut(), sequence)?;
        print(name, step);
        Ok(())
    };
    next("first token")?;
    print("until the first token", started);
    next("second token")?;
    for _ in 2..15 {
        decode(session.as_mut(), sequence)?;
    }
    print("until the 15th token", started);
    let step = Instant::now();
    decode(session.as_mut(), sequence)?;
    print("16th token", step);
    Ok(())
}

fn decode(session: &mut dyn Session, sequence: SequenceId) -> Result<(), Box<dyn Error>> {
    let (mut batch, mut output) = (StepBatch::default(), StepOutput::default());
    batch.push(sequence, &[1], Emit::Greedy { positions: 1 });
    session.step(&batch, &mut output)?;
    Ok(())
}
