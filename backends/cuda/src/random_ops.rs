//! Random instances of every operation, to compare a device with another one: a GPU with the
//! interpreter.
//!
//! A case describes its buffers and tables without addresses. Both devices get the same bytes, and
//! whole buffers are compared afterwards, so that a stray write is found too.

mod adapters;
mod attention;
mod builder;
mod case;
mod draws;
mod fused;
mod fused_attention;
mod positions;
mod products;
mod recurrent;
mod routing;
mod values;

use builder::Builder;
use case::{Case, Element, Placed};

use crate::device::{Device, DeviceError};
use crate::ops::{Address, Op};

/// How two devices differ in a case.
#[derive(Debug, Clone, PartialEq)]
pub struct Comparison {
    pub op: &'static str,
    /// The parameters, with buffers by number instead of addresses, and the seed.
    pub case: String,
    /// The largest difference; infinite if an infinity, or a whole number, differs.
    pub max_abs: f64,
    /// The largest difference, as a fraction of the reference's value or of its buffer's root mean
    /// square, whichever is larger.
    pub max_rel: f64,
    /// Whether both devices have NaN in the same places.
    pub equal_nan: bool,
    /// Why there is nothing to compare.
    pub failure: Option<DeviceError>,
}

/// Operations by name, each with what makes a case.
pub const GENERATORS: &[(&str, Generator)] = &[
    ("Embed", positions::embed),
    ("AddEmbedding", positions::add_embedding),
    ("AddFeatures", positions::add_features),
    ("Norm", values::norm),
    ("Linear", products::linear),
    ("LowRank", adapters::low_rank),
    ("ScaleRows", adapters::scale_rows),
    ("EmbedLowRank", adapters::embed_low_rank),
    ("Angles", positions::angles),
    ("Rope", positions::rope),
    ("Temperature", positions::temperature),
    ("WriteKv", attention::write_kv),
    ("Attend", attention::attend),
    ("AttendDense", attention::attend_dense),
    ("Activate", values::activate),
    ("Add", values::add),
    ("Multiply", values::multiply),
    ("Affine", values::affine),
    ("Clamp", values::clamp),
    ("Convolve", recurrent::convolve),
    ("DeltaGates", recurrent::delta_gates),
    ("DeltaUpdate", recurrent::delta_update),
    ("MambaUpdate", recurrent::mamba_update),
    ("Route", routing::route),
    ("ExpertLinear", products::expert_linear),
    ("CombineExperts", products::combine_experts),
    ("Gather", positions::gather),
    ("SumRows", positions::sum_rows),
    ("CopyParts", values::copy_parts),
    ("FinishLogits", values::finish_logits),
    ("Largest", values::largest),
    ("DrawTokens", draws::draw_tokens),
    ("FusedEmbed", fused::embed),
    ("FusedStore", fused::store),
    ("FusedResidual", fused::residual),
    ("FusedGated", fused::gated),
    ("FusedLargest", fused::largest),
    ("FusedAttention", fused_attention::attention),
    ("FusedQkvFinish", fused_attention::qkv_finish),
    ("FusedPromptAttention", fused_attention::prompt_attention),
    ("PackFragments", fused::pack),
    ("Advance", fused::advance),
];

/// The largest [`max_rel`](Comparison::max_rel) that is not an error of an operation.
pub fn tolerance(op: &str) -> f64 {
    /// Long sums of f32 in another order.
    const SUMMATION: f64 = 2e-4;
    /// Results whose difference in f32 is as small may be rounded to adjacent values of bf16,
    /// which are at most 2^-7 apart; so may probabilities and the heads that they come from.
    const ADJACENT: f64 = 0.01;
    /// As two steps of bf16: sums over many rounded probabilities, rounded again.
    const TWICE_ROUNDED: f64 = 2.0 / 128.0;
    match op {
        "FusedResidual" | "FusedGated" | "FusedAttention" | "FusedQkvFinish" => ADJACENT,
        "FusedPromptAttention" => TWICE_ROUNDED,
        _ => SUMMATION,
    }
}

/// Whether only GPUs of the fast path have a kernel for an operation.
pub fn needs_fast_path(op: &str) -> bool {
    op.starts_with("Fused") || op == "PackFragments"
}

/// What makes a case of an operation.
pub type Generator = fn(Builder) -> Case;

/// Runs `cases` cases of each operation on both devices.
pub fn compare_devices(
    reference: &mut dyn Device,
    tested: &mut dyn Device,
    seed: u64,
    cases: usize,
) -> Vec<Comparison> {
    let cases = 0..cases as u64;
    let all = GENERATORS
        .iter()
        .flat_map(|generator| cases.clone().map(move |case| (generator.0, case)));
    all.filter_map(|(op, case)| compare_case(reference, tested, op, seed.wrapping_add(case)))
        .collect()
}

/// Runs the case of an operation that a seed gives; `None` if no operation has the name.
pub fn compare_case(
    reference: &mut dyn Device,
    tested: &mut dyn Device,
    op: &str,
    seed: u64,
) -> Option<Comparison> {
    let generator = GENERATORS.iter().find(|(name, _)| *name == op)?.1;
    let case = generator(Builder::new(seed));
    let described = case.op(&case.numbered());
    let mut comparison = Comparison {
        op: described.name(),
        case: case.describe(&described, seed),
        max_abs: 0.0,
        max_rel: 0.0,
        equal_nan: true,
        failure: None,
    };
    let expected = run(reference, &case);
    let found = run(tested, &case);
    match (expected, found) {
        (Ok(expected), Ok(found)) => {
            for ((element, expected), (_, found)) in expected.iter().zip(&found) {
                comparison.compare(*element, expected, found);
            }
        }
        (Err(failure), _) | (_, Err(failure)) => comparison.failure = Some(failure),
    }
    Some(comparison)
}

/// The compared buffers after the launch.
fn run(device: &mut dyn Device, case: &Case) -> Result<Vec<(Element, Vec<u8>)>, DeviceError> {
    let mut addresses = Vec::new();
    let result = run_in(device, case, &mut addresses);
    addresses
        .into_iter()
        .for_each(|address| device.free(address));
    result
}

/// Pushes the addresses of the case's buffers, which are to be freed.
fn run_in(
    device: &mut dyn Device,
    case: &Case,
    addresses: &mut Vec<Address>,
) -> Result<Vec<(Element, Vec<u8>)>, DeviceError> {
    for buffer in &case.buffers {
        // A table may be empty, but a device need not allocate nothing.
        addresses.push(device.allocate(buffer.bytes.len().max(4))?);
    }
    let placed = Placed(addresses.clone());
    for (buffer, address) in case.buffers.iter().zip(&*addresses) {
        device.write(*address, &buffer.placed_bytes(&placed))?;
    }
    let op: Op = case.op(&placed);
    device.launch(&op, &case.step(&placed))?;
    let mut results = Vec::new();
    for (buffer, address) in case.buffers.iter().zip(&*addresses) {
        if let Some(element) = buffer.compared {
            let mut bytes = vec![0; buffer.bytes.len()];
            device.read(*address, &mut bytes)?;
            results.push((element, bytes));
        }
    }
    Ok(results)
}

impl Comparison {
    fn compare(&mut self, element: Element, expected: &[u8], found: &[u8]) {
        if element == Element::U32 {
            if expected != found {
                (self.max_abs, self.max_rel) = (f64::INFINITY, f64::INFINITY);
            }
            return;
        }
        let [expected, found] = [expected, found].map(|bytes| element.decode(bytes));
        let finite = expected.iter().filter(|value| value.is_finite());
        let squares: f64 = finite.clone().map(|value| value * value).sum();
        let typical = (squares / finite.count().max(1) as f64).sqrt();
        for (expected, found) in expected.into_iter().zip(found) {
            if expected.is_nan() || found.is_nan() {
                self.equal_nan &= expected.is_nan() && found.is_nan();
            } else if expected != found {
                let difference = (expected - found).abs();
                let size = expected
                    .abs()
                    .max(typical)
                    .max(f64::from(f32::MIN_POSITIVE));
                let share = if difference.is_finite() {
                    difference / size
                } else {
                    f64::INFINITY
                };
                self.max_abs = self.max_abs.max(difference);
                self.max_rel = self.max_rel.max(share);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{RecordId, Ticket};
    use crate::interpret::Interpreter;
    use crate::ops::{OPERATIONS, Step};

    /// An interpreter whose addresses differ, and which returns a wrong byte if told to.
    struct Shifted {
        inner: Interpreter,
        spoiled: bool,
    }

    impl Device for Shifted {
        fn allocate(&mut self, bytes: usize) -> Result<Address, DeviceError> {
            self.inner.allocate(1)?;
            self.inner.allocate(bytes)
        }

        fn free(&mut self, address: Address) {
            self.inner.free(address);
        }

        fn write(&mut self, to: Address, bytes: &[u8]) -> Result<(), DeviceError> {
            self.inner.write(to, bytes)
        }

        fn read(&mut self, from: Address, out: &mut [u8]) -> Result<(), DeviceError> {
            self.inner.read(from, out)?;
            if let (true, Some(last)) = (self.spoiled, out.last_mut()) {
                *last ^= 0x40;
            }
            Ok(())
        }

        fn copy(&mut self, from: Address, to: Address, bytes: usize) -> Result<(), DeviceError> {
            self.inner.copy(from, to, bytes)
        }

        fn launch(&mut self, op: &Op, step: &Step) -> Result<(), DeviceError> {
            self.inner.launch(op, step)
        }

        fn record(&mut self, launches: Vec<(Op, Step)>) -> Result<RecordId, DeviceError> {
            self.inner.record(launches)
        }

        fn replay(&mut self, record: RecordId) -> Result<(), DeviceError> {
            self.inner.replay(record)
        }

        fn forget(&mut self, record: RecordId) {
            self.inner.forget(record);
        }

        fn fetch(&mut self, from: Address, bytes: usize) -> Result<Ticket, DeviceError> {
            self.inner.fetch(from, bytes)
        }

        fn collect(&mut self, ticket: Ticket, out: &mut [u8]) -> Result<(), DeviceError> {
            self.inner.collect(ticket, out)
        }

        fn memory(&self) -> (u64, u64) {
            self.inner.memory()
        }
    }

    #[test]
    fn interpreters_agree() {
        let mut reference = Interpreter::default();
        for spoiled in [false, true] {
            let mut tested = Shifted {
                inner: Interpreter::default(),
                spoiled,
            };
            let cases = if spoiled { 1 } else { 6 };
            let found = compare_devices(&mut reference, &mut tested, 1, cases);
            assert_eq!(found.len(), cases * GENERATORS.len());
            for comparison in found {
                assert_eq!(comparison.failure, None, "{comparison:?}");
                let equal = comparison.max_abs == 0.0 && comparison.max_rel == 0.0;
                assert_eq!(equal && comparison.equal_nan, !spoiled, "{comparison:?}");
            }
            // All buffers were freed.
            assert_eq!(reference.memory().0, reference.memory().1);
        }
    }

    #[test]
    fn every_operation_has_a_generator() {
        let names: Vec<&str> = GENERATORS.iter().map(|(name, _)| *name).collect();
        let general = OPERATIONS.iter().map(|(name, _)| *name);
        let fused = [
            "FusedEmbed",
            "FusedStore",
            "FusedResidual",
            "FusedGated",
            "FusedLargest",
            "FusedAttention",
            "FusedQkvFinish",
            "FusedPromptAttention",
            "PackFragments",
            "Advance",
        ];
        let expected: Vec<&str> = general.chain(fused).collect();
        assert_eq!(names, expected);
        for (name, generator) in GENERATORS {
            let case = generator(Builder::new(5));
            assert_eq!(case.op(&case.numbered()).name(), *name);
        }
    }
}
