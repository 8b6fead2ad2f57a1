//! Implements the methods of a session that its sequences answer.

/// The methods of [`Session`](crate::Session) that only concern sequences, except `release`, over
/// a field of type [`Sequences`](crate::sequences::Sequences).
#[macro_export]
macro_rules! delegate_sequences {
    ($sequences:ident) => {
        fn create_adapted(
            &mut self,
            adapters: &[$crate::AppliedAdapter],
        ) -> Result<$crate::SequenceId, $crate::SessionError> {
            self.$sequences.create(adapters)
        }

        fn len(&self, sequence: $crate::SequenceId) -> Result<usize, $crate::SessionError> {
            self.$sequences.len(sequence)
        }

        fn reusable(
            &self,
            sequence: $crate::SequenceId,
            at_most: usize,
        ) -> Result<usize, $crate::SessionError> {
            self.$sequences.reusable(sequence, at_most)
        }

        fn held(
            &self,
            sequences: &[$crate::SequenceId],
        ) -> Result<$crate::HeldMemory, $crate::SessionError> {
            self.$sequences.held(sequences)
        }

        fn fork(
            &mut self,
            source: $crate::SequenceId,
            len: usize,
        ) -> Result<$crate::SequenceId, $crate::SessionError> {
            self.$sequences.fork(source, len)
        }

        fn truncate(
            &mut self,
            sequence: $crate::SequenceId,
            len: usize,
        ) -> Result<(), $crate::SessionError> {
            self.$sequences.truncate(sequence, len)
        }

        fn export_range_media(
            &self,
            sequence: $crate::SequenceId,
            range: std::ops::Range<usize>,
            out: &mut Vec<u8>,
        ) -> Result<(), $crate::SessionError> {
            self.$sequences.export_range_media(sequence, &range, out)
        }

        fn retain_media(&mut self, media: $crate::MediaId) -> Result<(), $crate::SessionError> {
            self.$sequences.retain_media(media)
        }

        fn release_media(&mut self, media: $crate::MediaId) -> Result<(), $crate::SessionError> {
            self.$sequences.release_media(media)
        }
    };
}

/// The exports and imports of [`Session`](crate::Session), over a field of type
/// [`Sequences`](crate::sequences::Sequences) with a
/// [`TransferStorage`](crate::sequences::TransferStorage), and one of type
/// [`TransferScope`](crate::sequences::TransferScope).
#[macro_export]
macro_rules! delegate_transfers {
    ($sequences:ident, $scope:ident) => {
        fn export(&self, sequence: $crate::SequenceId) -> Result<Vec<u8>, $crate::SessionError> {
            self.$sequences.export(sequence, &self.$scope)
        }

        fn import(&mut self, bytes: &[u8]) -> Result<$crate::SequenceId, $crate::SessionError> {
            self.$sequences.import_exported(bytes, &self.$scope)
        }

        fn range_fingerprint(&self) -> Result<u64, $crate::SessionError> {
            Ok(self.$scope.range_fingerprint())
        }

        fn export_range(
            &self,
            sequence: $crate::SequenceId,
            range: std::ops::Range<usize>,
            out: &mut Vec<u8>,
        ) -> Result<(), $crate::SessionError> {
            let scope = &self.$scope;
            self.$sequences.export_range(sequence, range, scope, out)
        }

        fn import_range(
            &mut self,
            sequence: $crate::SequenceId,
            tokens: usize,
            bytes: &[u8],
        ) -> Result<(), $crate::SessionError> {
            let scope = &self.$scope;
            self.$sequences
                .import_exported_range(sequence, tokens, bytes, scope)
        }

        fn export_tail(
            &self,
            sequence: $crate::SequenceId,
            len: usize,
            part: std::ops::Range<usize>,
            out: &mut Vec<u8>,
        ) -> Result<bool, $crate::SessionError> {
            let scope = &self.$scope;
            self.$sequences
                .export_tail(sequence, len, &part, (scope, out))
        }

        fn import_tail(
            &mut self,
            sequence: $crate::SequenceId,
            bytes: &[u8],
        ) -> Result<bool, $crate::SessionError> {
            let scope = &self.$scope;
            self.$sequences.import_exported_tail(sequence, bytes, scope)
        }
    };
}
