#!/bin/sh
# Runs NVIDIA's compute-sanitizer over a part of the tests on a GPU: invalid accesses (memcheck),
# races in shared memory (racecheck), and reads of memory that was never written (initcheck).
#
#     cargo test --release -p loquat-cuda --features cuda --no-run     # prints the path of tests/it
#     cargo build --release -p loquat-cuda --features cuda --example h200_table
#     backends/cuda/tests/sanitize.sh target/release/deps/it-… target/release/examples/h200_table
#
# Each tool runs over the kernels' comparison with the interpreter, the conformance suite of some
# goldens, and a tiny model on the fast path. SECONDS_PER_RUN (default 27) limits each of these nine
# runs: what it has found until then is reported. FAMILIES and TOOLS choose goldens and tools, LOGS a
# folder for the whole output. Exits with 1 if anything was found, 2 if the tools cannot run, 3 if
# nothing was found but a run was cut short.
#
# No tool sees races between dependent launches, which are in global memory: `h200_table --steps 10000`
# compares their results instead.
set -u

usage='usage: sanitize.sh TEST_PROGRAM H200_TABLE'
tests=${1:?$usage}
table=${2:?$usage}
seconds=${SECONDS_PER_RUN:-27}
logs=${LOGS:-$(mktemp -d)}
# Grouped and shared heads, experts, both kinds of states, latent attention, windows.
LOQUAT_FAMILIES=${FAMILIES:-llama,qwen3_moe,mamba2,qwen3_next,deepseek_v3,gemma3_text}
LOQUAT_BACKENDS=cuda
LOQUAT_REQUIRE_CUDA=1
RUST_TEST_THREADS=1
export LOQUAT_FAMILIES LOQUAT_BACKENDS LOQUAT_REQUIRE_CUDA RUST_TEST_THREADS

sanitizer=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
if ! [ -x "$sanitizer" ]; then
    echo "compute-sanitizer was not found; it is part of the CUDA toolkit." >&2
    exit 2
fi
mkdir -p "$logs"

status=0

# check TOOL NAME COMMAND…
check() {
    tool=$1
    log=$logs/$1-$2.log
    name=$2
    shift 2
    # Refused allocations are part of the tests.
    case $tool in
        memcheck) options='--report-api-errors no' ;;
        *) options= ;;
    esac
    started=$(date +%s)
    # shellcheck disable=SC2086
    timeout --signal=INT --kill-after=10 "$seconds" \
        "$sanitizer" --tool "$tool" --error-exitcode 9 --print-limit 20 $options "$@" >"$log" 2>&1
    code=$?
    took=$(($(date +%s) - started))
    # A clean run has only banners and the summary.
    findings=$(grep -cE '^=+ +(Invalid|Uninitialized|Misaligned|(Error|Warning): Race|Race|Program hit|Error:)' "$log")
    summary=$(grep -E 'SUMMARY' "$log" | tail -n 1)
    if [ "$findings" -gt 0 ] || [ "$code" -eq 9 ]; then
        result="FOUND $findings"
        status=1
    elif [ "$code" -eq 124 ] || [ "$code" -eq 137 ]; then
        result='clean so far, out of time'
        [ "$status" -eq 0 ] && status=3
    elif [ "$code" -ne 0 ]; then
        result="FAILED with exit status $code"
        status=1
    elif grep -q ' 0 passed' "$log"; then
        result='FAILED: no test ran'
        status=1
    else
        result=clean
    fi
    suites=$(grep -cE '^cuda, .* s, \[' "$log")
    [ "$suites" -gt 0 ] && result="$result, $suites suites"
    echo "$tool, $name: $result; $took s; ${summary:-no summary} ($log)"
    case $result in
        FOUND* | FAILED*) grep -vE '^(running|test )' "$log" | tail -n 40 ;;
    esac
}

for tool in ${TOOLS:-memcheck racecheck initcheck}; do
    check "$tool" kernels "$tests" kernels_compute --nocapture
    check "$tool" fast_path "$table" --model llama-tiny --batches 1,3,8,11 --depth 100 --tokens 6 \
        --rounds 1 --no-ceiling
    check "$tool" conformance "$tests" every_family_conforms --nocapture
done
exit "$status"
