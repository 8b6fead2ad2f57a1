//! The tensors of llama.cpp's `mmproj` files in the order of the hub's files.

use loquat_spec::families::MmprojOrder;

use crate::{Blob, RawTensor, WeightsError};

const PATCH: &str = "v.patch_embd.weight";
/// The patch matrix of a second frame.
const SECOND_PATCH: &str = "v.patch_embd.weight.1";

/// The tower's tensors. Those whose values are in another order are copied.
pub(crate) fn tower_tensors(
    tensors: &[RawTensor],
    order: MmprojOrder,
) -> Result<Vec<RawTensor>, WeightsError> {
    let second = tensors.iter().find(|tensor| tensor.name == SECOND_PATCH);
    let own = tensors.iter().filter(|tensor| tensor.name != SECOND_PATCH);
    own.map(|tensor| {
        let name = if order.swapped_feed_forward {
            swapped(&tensor.name)
        } else {
            tensor.name.clone()
        };
        let mut tensor = RawTensor {
            name,
            ..tensor.clone()
        };
        let is_head_rows = ["attn_q.", "attn_k."]
            .iter()
            .any(|part| tensor.name.contains(part));
        match (order.interleaved_heads, second) {
            _ if tensor.name == PATCH => {
                if let Some(second) = second {
                    tensor = joined_frames(&tensor, second)?;
                }
                if order.patch_channels_first {
                    tensor = channels_last(&tensor)?;
                }
            }
            (Some(head), _) if is_head_rows => tensor = halves(&tensor, head)?,
            _ => {}
        }
        // A convolution's weights become rows of values.
        if let [rows, rest @ ..] = tensor.shape.as_slice()
            && rest.len() >= 3
        {
            tensor.shape = vec![*rows, rest.iter().product()];
        }
        Ok(tensor)
    })
    .collect()
}

fn swapped(name: &str) -> String {
    match (name.contains(".ffn_up."), name.contains(".ffn_down.")) {
        (true, _) => name.replace(".ffn_up.", ".ffn_down."),
        (_, true) => name.replace(".ffn_down.", ".ffn_up."),
        _ => name.to_owned(),
    }
}

/// Two matrices of `[row][channel][place]` as one of `[row][channel][frame][place]`.
fn joined_frames(first: &RawTensor, second: &RawTensor) -> Result<RawTensor, WeightsError> {
    let [rows, channels, height, width] = patch_shape(first)?;
    if second.shape != first.shape || second.dtype != first.dtype {
        return Err(misshapen(
            second,
            "the same shape and type as the other frame's",
        ));
    }
    let run = height * width * first.dtype.block_bytes();
    let mut data = Vec::with_capacity(2 * first.data.len());
    for (first, second) in first.data.chunks(run).zip(second.data.chunks(run)) {
        data.extend_from_slice(first);
        data.extend_from_slice(second);
    }
    let shape = vec![rows, channels, 2, height, width];
    RawTensor::new(&first.name, first.dtype, shape, Blob::from_vec(data))
}

/// `[row][channel][place]` as `[row][place][channel]`.
fn channels_last(tensor: &RawTensor) -> Result<RawTensor, WeightsError> {
    let [rows, channels, height, width] = patch_shape(tensor)?;
    let (places, bytes) = (height * width, tensor.dtype.block_bytes());
    let mut data = Vec::with_capacity(tensor.data.len());
    for row in tensor.data.chunks(channels * places * bytes) {
        for place in 0..places {
            for channel in 0..channels {
                let at = (channel * places + place) * bytes;
                data.extend_from_slice(row.get(at..at + bytes).unwrap_or_default());
            }
        }
    }
    let shape = vec![rows, height, width, channels];
    RawTensor::new(&tensor.name, tensor.dtype, shape, Blob::from_vec(data))
}

/// Rows of heads with the two values of a pair next to each other, as halves: all first values,
/// then all second ones.
fn halves(tensor: &RawTensor, head: usize) -> Result<RawTensor, WeightsError> {
    let rows = tensor.shape.first().copied().unwrap_or(0);
    if head == 0 || !head.is_multiple_of(2) || !rows.is_multiple_of(head) || rows == 0 {
        return Err(misshapen(tensor, "heads of an even number of rows"));
    }
    let bytes = tensor.data.len() / rows;
    let mut data = Vec::with_capacity(tensor.data.len());
    for row in 0..rows {
        let (start, within) = (row / head * head, row % head);
        let source = start + within % (head / 2) * 2 + within / (head / 2);
        let at = source * bytes;
        data.extend_from_slice(tensor.data.get(at..at + bytes).unwrap_or_default());
    }
    let (name, shape) = (&tensor.name, tensor.shape.clone());
    RawTensor::new(name, tensor.dtype, shape, Blob::from_vec(data))
}

/// The shape of an unquantized patch matrix.
fn patch_shape(tensor: &RawTensor) -> Result<[usize; 4], WeightsError> {
    let plain = tensor.dtype.block_len() == 1;
    match *tensor.shape.as_slice() {
        [rows, channels, height, width] if plain => Ok([rows, channels, height, width]),
        _ => Err(misshapen(tensor, "four dimensions and not quantized")),
    }
}

fn misshapen(tensor: &RawTensor, expected: &'static str) -> WeightsError {
    WeightsError::MmprojTensor {
        tensor: tensor.name.clone(),
        dtype: tensor.dtype,
        shape: tensor.shape.clone(),
        expected,
    }
}
