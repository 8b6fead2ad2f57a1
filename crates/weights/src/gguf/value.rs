//! GGUF metadata: typed values under dotted keys.

use std::collections::BTreeMap;

/// One metadata value.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    U64(u64),
    I64(i64),
    F32(f32),
    F64(f64),
    Bool(bool),
    String(String),
    Array(Array),
}

/// A metadata array. GGUF also allows arrays of arrays; no known model uses
/// them and the reader refuses them.
#[derive(Clone, Debug, PartialEq)]
pub enum Array {
    U8(Vec<u8>),
    I8(Vec<i8>),
    U16(Vec<u16>),
    I16(Vec<i16>),
    U32(Vec<u32>),
    I32(Vec<i32>),
    U64(Vec<u64>),
    I64(Vec<i64>),
    F32(Vec<f32>),
    F64(Vec<f64>),
    Bool(Vec<bool>),
    String(Vec<String>),
}

impl Value {
    /// The value as an unsigned integer, whichever integer type holds it.
    pub fn as_u64(&self) -> Option<u64> {
        match *self {
            Value::U64(v) => Some(v),
            _ => u64::try_from(self.as_i64()?).ok(),
        }
    }

    /// The value as a signed integer, whichever integer type holds it.
    pub fn as_i64(&self) -> Option<i64> {
        match *self {
            Value::U8(v) => Some(v.into()),
            Value::I8(v) => Some(v.into()),
            Value::U16(v) => Some(v.into()),
            Value::I16(v) => Some(v.into()),
            Value::U32(v) => Some(v.into()),
            Value::I32(v) => Some(v.into()),
            Value::U64(v) => i64::try_from(v).ok(),
            Value::I64(v) => Some(v),
            _ => None,
        }
    }

    /// The value as a float, if it has a float type.
    pub fn as_f64(&self) -> Option<f64> {
        match *self {
            Value::F32(v) => Some(v.into()),
            Value::F64(v) => Some(v),
            _ => None,
        }
    }

    /// GGUF's name for the value's type.
    pub fn type_name(&self) -> &'static str {
        match self {
            Value::U8(_) => "U8",
            Value::I8(_) => "I8",
            Value::U16(_) => "U16",
            Value::I16(_) => "I16",
            Value::U32(_) => "U32",
            Value::I32(_) => "I32",
            Value::U64(_) => "U64",
            Value::I64(_) => "I64",
            Value::F32(_) => "F32",
            Value::F64(_) => "F64",
            Value::Bool(_) => "BOOL",
            Value::String(_) => "STRING",
            Value::Array(_) => "ARRAY",
        }
    }
}

impl Array {
    /// The array as unsigned integers, whichever integer type holds it.
    fn as_u64s(&self) -> Option<Vec<u64>> {
        fn convert<T: Copy + TryInto<u64>>(values: &[T]) -> Option<Vec<u64>> {
            values.iter().map(|&v| v.try_into().ok()).collect()
        }
        match self {
            Array::U8(v) => convert(v),
            Array::I8(v) => convert(v),
            Array::U16(v) => convert(v),
            Array::I16(v) => convert(v),
            Array::U32(v) => convert(v),
            Array::I32(v) => convert(v),
            Array::U64(v) => convert(v),
            Array::I64(v) => convert(v),
            Array::F32(_) | Array::F64(_) | Array::Bool(_) | Array::String(_) => None,
        }
    }
}

/// A file's metadata.
///
/// Each typed getter returns `None` both for an absent key and for a value of
/// another type; [`Metadata::get`] distinguishes them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metadata(BTreeMap<String, Value>);

impl Metadata {
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.0.get(key)
    }

    pub fn str(&self, key: &str) -> Option<&str> {
        match self.get(key)? {
            Value::String(v) => Some(v),
            _ => None,
        }
    }

    pub fn u64(&self, key: &str) -> Option<u64> {
        self.get(key)?.as_u64()
    }

    pub fn i64(&self, key: &str) -> Option<i64> {
        self.get(key)?.as_i64()
    }

    pub fn f64(&self, key: &str) -> Option<f64> {
        self.get(key)?.as_f64()
    }

    pub fn bool(&self, key: &str) -> Option<bool> {
        match *self.get(key)? {
            Value::Bool(v) => Some(v),
            _ => None,
        }
    }

    fn array(&self, key: &str) -> Option<&Array> {
        match self.get(key)? {
            Value::Array(v) => Some(v),
            _ => None,
        }
    }

    pub fn strings(&self, key: &str) -> Option<&[String]> {
        match self.array(key)? {
            Array::String(v) => Some(v),
            _ => None,
        }
    }

    pub fn f32s(&self, key: &str) -> Option<&[f32]> {
        match self.array(key)? {
            Array::F32(v) => Some(v),
            _ => None,
        }
    }

    pub fn i32s(&self, key: &str) -> Option<&[i32]> {
        match self.array(key)? {
            Array::I32(v) => Some(v),
            _ => None,
        }
    }

    pub fn bools(&self, key: &str) -> Option<&[bool]> {
        match self.array(key)? {
            Array::Bool(v) => Some(v),
            _ => None,
        }
    }

    /// An array of any integer type, where no element is negative.
    pub fn u64s(&self, key: &str) -> Option<Vec<u64>> {
        self.array(key)?.as_u64s()
    }

    /// All entries, in the order of their keys.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Value)> {
        self.0.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// Adds an entry and returns the one it replaces.
    pub fn insert(&mut self, key: impl Into<String>, value: Value) -> Option<Value> {
        self.0.insert(key.into(), value)
    }
}

impl<K: Into<String>> FromIterator<(K, Value)> for Metadata {
    fn from_iter<I: IntoIterator<Item = (K, Value)>>(entries: I) -> Metadata {
        Metadata(
            entries
                .into_iter()
                .map(|(key, value)| (key.into(), value))
                .collect(),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn getters_widen_integers_and_refuse_other_types() {
        let metadata: Metadata = [
            ("u8", Value::U8(7)),
            ("i32", Value::I32(-7)),
            ("u64", Value::U64(u64::MAX)),
            ("f32", Value::F32(0.5)),
            ("text", Value::String("x".into())),
            ("yes", Value::Bool(true)),
            ("ints", Value::Array(Array::I32(vec![1, 2]))),
            ("negative", Value::Array(Array::I8(vec![1, -2]))),
            ("floats", Value::Array(Array::F32(vec![1.5]))),
        ]
        .into_iter()
        .collect();

        assert_eq!(metadata.u64("u8"), Some(7));
        assert_eq!(metadata.i64("i32"), Some(-7));
        assert_eq!(metadata.u64("i32"), None);
        assert_eq!(metadata.u64("u64"), Some(u64::MAX));
        assert_eq!(metadata.i64("u64"), None);
        assert_eq!(metadata.f64("f32"), Some(0.5));
        assert_eq!(metadata.f64("u8"), None);
        assert_eq!(metadata.str("text"), Some("x"));
        assert_eq!(metadata.str("u8"), None);
        assert_eq!(metadata.bool("yes"), Some(true));
        assert_eq!(metadata.u64s("ints"), Some(vec![1, 2]));
        assert_eq!(metadata.i32s("ints"), Some(&[1, 2][..]));
        assert_eq!(metadata.u64s("negative"), None);
        assert_eq!(metadata.f32s("floats"), Some(&[1.5][..]));
        assert_eq!(metadata.strings("floats"), None);
        assert_eq!(metadata.get("absent"), None);
    }
}
