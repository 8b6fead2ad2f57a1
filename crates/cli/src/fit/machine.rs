//! The machine: the device that holds models, its memory and its speed.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use loquat::machine::{
    MachineLimits, MachineMemory, instruction_sets, measure_quickly, processor_name,
};
use loquat_session::{Backend, DeviceKind, MemoryBudget, Probe};
use serde_json::{Value, json};

use crate::error::CliError;
use crate::files;

/// The device that would run models.
#[derive(Debug, Clone, PartialEq)]
pub struct Machine {
    pub backend: &'static str,
    pub device: String,
    /// Models are in the memory of a GPU.
    pub is_gpu: bool,
    /// Memory for models; `None` if the device does not report it.
    pub memory_bytes: Option<u64>,
    /// Currently available memory, if the system reports it.
    pub available_bytes: Option<u64>,
    /// `None` if nothing was measured.
    pub speed: Option<MachineSpeed>,
    /// How fast the device's memory can be read, if its driver reports it.
    pub reported_bytes_per_second: Option<u64>,
}

/// Measured limits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MachineSpeed {
    pub read_bytes_per_second: f64,
    pub multiply_adds_per_second: f64,
    /// Time since the last measurement.
    pub age: Duration,
}

/// When to measure this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MeasurePolicy {
    /// Measure and discard earlier results.
    Always,
    /// Measure if the last result is older than [`FRESH`].
    IfStale,
    /// Use the stored result only.
    Never,
}

/// Other programs make the machine look slower, so the best of all measurements counts.
/// Measurements within this time would see the same load.
const FRESH: Duration = Duration::from_secs(60 * 60);

impl Machine {
    /// Detects the backend's device. Measurements are stored in the directory `cache`.
    pub fn detect(
        backend: &dyn Backend,
        cache: &Path,
        measure: MeasurePolicy,
    ) -> Result<Self, CliError> {
        let device = match backend.probe() {
            Probe::Available(devices) => devices.into_iter().next(),
            Probe::Unavailable { .. } => None,
        };
        let is_gpu = device.as_ref().map(|device| device.kind) == Some(DeviceKind::Gpu);
        let label = device.as_ref().map(|device| device.label.clone());
        // The estimates are calibrated for the CPU backend's kernels only.
        let is_measured = backend.name() == "cpu";
        Ok(Self {
            backend: backend.name(),
            device: label.unwrap_or_else(|| backend.name().to_owned()),
            is_gpu,
            memory_bytes: device.as_ref().and_then(|device| device.memory_bytes),
            reported_bytes_per_second: device.and_then(|device| device.memory_bytes_per_second),
            available_bytes: if is_gpu {
                None
            } else {
                MachineMemory::now().available
            },
            speed: if is_measured {
                MachineSpeed::for_this_machine(cache, measure)?
            } else {
                None
            },
        })
    }

    /// Limits the memory to a budget.
    pub fn limited_to(mut self, budget: Option<MemoryBudget>) -> Self {
        let allowed = budget.map(|budget| match (budget, self.memory_bytes) {
            (budget, Some(memory)) => budget.bytes(memory).min(memory),
            (budget, None) => budget.bytes(u64::MAX),
        });
        self.memory_bytes = allowed.or(self.memory_bytes);
        self
    }
}

impl MachineSpeed {
    fn for_this_machine(cache: &Path, measure: MeasurePolicy) -> Result<Option<Self>, CliError> {
        let record = SpeedRecord::for_this_machine(cache);
        let known = match measure {
            MeasurePolicy::Always => None,
            MeasurePolicy::IfStale | MeasurePolicy::Never => record.read(SystemTime::now()),
        };
        let is_fresh = known.is_some_and(|known| known.age < FRESH);
        if measure == MeasurePolicy::Never || is_fresh {
            return Ok(known);
        }
        let MachineLimits {
            read_bytes_per_second,
            multiply_adds_per_second,
            ..
        } = measure_quickly(None)?;
        // Whole numbers survive a round trip through JSON.
        let found = Self {
            read_bytes_per_second: read_bytes_per_second.round(),
            multiply_adds_per_second: multiply_adds_per_second.round(),
            age: Duration::ZERO,
        };
        let best = known.map_or(found, |known| found.max(known));
        record.write(SystemTime::now(), best);
        Ok(Some(best))
    }

    fn max(self, other: Self) -> Self {
        let (read, multiply) = (self.read_bytes_per_second, self.multiply_adds_per_second);
        Self {
            read_bytes_per_second: read.max(other.read_bytes_per_second),
            multiply_adds_per_second: multiply.max(other.multiply_adds_per_second),
            age: self.age.min(other.age),
        }
    }
}

/// A stored measurement and the machine it belongs to.
struct SpeedRecord {
    path: PathBuf,
    /// Machines and containers may share a cache directory.
    identity: String,
}

impl SpeedRecord {
    fn for_this_machine(cache: &Path) -> Self {
        let processor = processor_name().unwrap_or_else(|| std::env::consts::ARCH.to_owned());
        let cores = loquat::machine::MachineCores::now();
        let unit = instruction_sets().first().copied().unwrap_or_default();
        let memory = MachineMemory::now();
        Self {
            path: cache.join("machine.json"),
            identity: format!(
                "{processor}, {} threads, {unit}, {} bytes, loquat {}",
                cores.threads,
                memory.physical.unwrap_or_default(),
                env!("CARGO_PKG_VERSION"),
            ),
        }
    }

    /// The stored measurement, if it is of this machine.
    fn read(&self, now: SystemTime) -> Option<MachineSpeed> {
        let text = std::fs::read_to_string(&self.path).ok()?;
        let record: Value = serde_json::from_str(&text).ok()?;
        let field = |name: &str| record[name].as_f64().filter(|speed| *speed > 0.0);
        let measured = Duration::from_secs(record["measured"].as_u64()?);
        let speed = MachineSpeed {
            read_bytes_per_second: field("read_bytes_per_second")?,
            multiply_adds_per_second: field("int8_multiply_adds_per_second")?,
            // If the clock was set back, the age is unknown.
            age: unix_time(now).checked_sub(measured).unwrap_or(FRESH),
        };
        (record["machine"] == self.identity.as_str()).then_some(speed)
    }

    /// Stores a measurement. On failure it is measured again next time.
    fn write(&self, measured: SystemTime, speed: MachineSpeed) {
        let record = json!({
            "machine": self.identity,
            "measured": unix_time(measured).as_secs(),
            "read_bytes_per_second": speed.read_bytes_per_second,
            "int8_multiply_adds_per_second": speed.multiply_adds_per_second,
        });
        let write = || {
            std::fs::create_dir_all(self.path.parent().unwrap_or(&self.path))?;
            files::write_whole(&self.path, &format!("{record:#}\n"), true)
        };
        if let Err(error) = write() {
            tracing::debug!("cannot write {}: {error}", self.path.display());
        }
    }
}

fn unix_time(time: SystemTime) -> Duration {
    time.duration_since(UNIX_EPOCH).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn speed(speed: f64) -> MachineSpeed {
        MachineSpeed {
            read_bytes_per_second: speed,
            multiply_adds_per_second: speed,
            age: Duration::ZERO,
        }
    }

    #[test]
    fn measurement_is_stored_per_machine() {
        let folder = tempfile::tempdir().unwrap();
        let record = |identity: &str| SpeedRecord {
            path: folder.path().join("a/machine.json"),
            identity: identity.to_owned(),
        };
        let now = UNIX_EPOCH + Duration::from_secs(1_700_000_000);
        assert_eq!(record("one").read(now), None);
        record("one").write(now, speed(1e10));
        assert_eq!(record("one").read(now), Some(speed(1e10)));
        assert_eq!(record("other").read(now), None);
        let later = record("one").read(now + Duration::from_secs(90)).unwrap();
        assert_eq!(later.age, Duration::from_secs(90));
        for broken in [
            "",
            "{",
            "{\"machine\": \"one\", \"read_bytes_per_second\": -1}",
        ] {
            std::fs::write(&record("one").path, broken).unwrap();
            assert_eq!(record("one").read(now), None, "{broken}");
        }
        let files = std::fs::read_dir(folder.path().join("a")).unwrap();
        assert_eq!(files.count(), 1, "no temporary file is left");
    }

    #[test]
    fn best_measurement_counts_and_stale_is_repeated() {
        const SLOW: f64 = 1.0;
        const FAST: f64 = 1e18;
        let folder = tempfile::tempdir().unwrap();
        let detect = |measure| MachineSpeed::for_this_machine(folder.path(), measure).unwrap();
        let record = SpeedRecord::for_this_machine(folder.path());
        assert_eq!(detect(MeasurePolicy::Never), None);
        let (minute, day) = (60, 60 * 60 * 24);
        for (known, seconds_ago, is_measured) in [
            (SLOW, minute, false),
            (SLOW, day, true),
            (FAST, day, true),
            // The clock was set back since.
            (SLOW, -day, true),
        ] {
            let ago = Duration::from_secs(i64::unsigned_abs(seconds_ago));
            let then = if seconds_ago < 0 {
                SystemTime::now() + ago
            } else {
                SystemTime::now() - ago
            };
            record.write(then, speed(known));
            let found = detect(MeasurePolicy::IfStale).unwrap();
            let kept = known == FAST || !is_measured;
            let is_known = found.read_bytes_per_second == known;
            assert_eq!(is_known, kept, "{known} {seconds_ago}");
            let age = record.read(SystemTime::now()).unwrap().age;
            let is_new = age < Duration::from_secs(minute as u64);
            assert_eq!(is_new, is_measured, "{known} {seconds_ago}");
        }
        record.write(SystemTime::now(), speed(FAST));
        let anew = detect(MeasurePolicy::Always).unwrap().read_bytes_per_second;
        assert!(anew < FAST);
        let kept = detect(MeasurePolicy::Never).unwrap();
        assert_eq!(kept.read_bytes_per_second, anew);
    }

    #[test]
    fn budget_only_reduces_memory() {
        let machine = |memory_bytes| Machine {
            backend: "cpu",
            device: String::new(),
            is_gpu: false,
            memory_bytes,
            available_bytes: None,
            speed: None,
            reported_bytes_per_second: None,
        };
        for (memory, budget, expected) in [
            (Some(100), None, Some(100)),
            (Some(100), Some(MemoryBudget::Bytes(30)), Some(30)),
            (Some(100), Some(MemoryBudget::Bytes(300)), Some(100)),
            (Some(100), Some(MemoryBudget::Percent(50)), Some(50)),
            (None, Some(MemoryBudget::Bytes(30)), Some(30)),
            (None, None, None),
        ] {
            assert_eq!(machine(memory).limited_to(budget).memory_bytes, expected);
        }
    }
}
