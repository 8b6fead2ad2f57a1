//! Instruction sets that both engines can be held to.

/// An instruction set of `--isa`.
#[derive(Debug, PartialEq)]
pub struct InstructionSet {
    /// As `LOQUAT_ISA` has it.
    pub name: &'static str,
    /// How llama.cpp is built for it.
    pub cmake_args: &'static str,
    /// Where llama.cpp is installed.
    pub folder: &'static str,
}

/// All instructions of the machine.
pub const NATIVE: InstructionSet = InstructionSet {
    name: "",
    cmake_args: "-DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON",
    folder: "target/compare",
};

macro_rules! instruction_set {
    ($name:literal, $flags:literal) => {
        InstructionSet {
            name: $name,
            cmake_args: concat!("-DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=OFF", $flags),
            folder: concat!("target/compare/", $name),
        }
    };
}

pub const INSTRUCTION_SETS: [InstructionSet; 4] = [
    instruction_set!("portable", ""),
    instruction_set!(
        "avx2",
        " -DGGML_AVX=ON -DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON -DGGML_BMI2=ON"
    ),
    instruction_set!(
        "avxvnni",
        " -DGGML_AVX=ON -DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON -DGGML_BMI2=ON \
         -DGGML_AVX_VNNI=ON"
    ),
    instruction_set!(
        "avx512",
        " -DGGML_AVX=ON -DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON -DGGML_BMI2=ON \
         -DGGML_AVX512=ON -DGGML_AVX512_VBMI=ON -DGGML_AVX512_VNNI=ON -DGGML_AVX512_BF16=ON"
    ),
];
