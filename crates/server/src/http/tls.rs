//! TLS by rustls, from PEM files.

use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{self, ServerConfig};

use crate::config::{self, Config};

/// Why the certificate or its key cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("cannot read the certificate {}: {source}", path.display())]
    Certificate { path: PathBuf, source: pem::Error },
    #[error("{} has no certificate in PEM form", path.display())]
    NoCertificate { path: PathBuf },
    #[error("cannot read the private key {}: {source}", path.display())]
    PrivateKey { path: PathBuf, source: pem::Error },
    #[error("{} and {} do not work together: {source}", certificate.display(), private_key.display())]
    Together {
        certificate: PathBuf,
        private_key: PathBuf,
        source: rustls::Error,
    },
}

/// The certificate in use; without one, connections are plain.
#[derive(Default)]
pub struct Tls(RwLock<Certified>);

/// The acceptor for the configured files.
#[derive(Default)]
pub struct Certified(Option<TlsAcceptor>);

impl Tls {
    /// For the next connection.
    pub fn acceptor(&self) -> Option<TlsAcceptor> {
        let current = self.0.read().unwrap_or_else(PoisonError::into_inner);
        current.0.clone()
    }

    /// Open connections keep theirs.
    pub fn replace(&self, by: Certified) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = by;
    }
}

impl Certified {
    /// Reads the configured files.
    pub fn read(config: &Config) -> Result<Self, TlsError> {
        config.tls.as_ref().map(acceptor).transpose().map(Self)
    }
}

fn acceptor(files: &config::Tls) -> Result<TlsAcceptor, TlsError> {
    let config::Tls {
        certificate,
        private_key,
    } = files;
    let chain = certificates(certificate)?;
    let key = PrivateKeyDer::from_pem_file(private_key).map_err(|source| TlsError::PrivateKey {
        path: private_key.clone(),
        source,
    })?;
    let built = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, key));
    let mut config = built.map_err(|source| TlsError::Together {
        certificate: certificate.clone(),
        private_key: private_key.clone(),
        source,
    })?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let chain = read.map_err(|source| TlsError::Certificate {
        path: path.to_owned(),
        source,
    })?;
    if chain.is_empty() {
        Err(TlsError::NoCertificate {
            path: path.to_owned(),
        })
    } else {
        Ok(chain)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_their_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let [one, other] =
            [(); 2].map(|()| rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap());
        let certificate = file("certificate.pem", &one.cert.pem());
        let key = file("key.pem", &one.signing_key.serialize_pem());
        let foreign = file("foreign.pem", &other.signing_key.serialize_pem());
        let empty = file("empty.pem", "");
        let missing = folder.path().join("missing.pem");
        for (certificate, private_key, expected) in [
            (&certificate, &key, Ok(())),
            (&missing, &key, Err("missing.pem")),
            (&empty, &key, Err("empty.pem")),
            (&certificate, &missing, Err("missing.pem")),
            (&certificate, &empty, Err("empty.pem")),
            (&certificate, &foreign, Err("foreign.pem")),
        ] {
            let files = config::Tls {
                certificate: certificate.clone(),
                private_key: private_key.clone(),
            };
            match (acceptor(&files), expected) {
                (Ok(_), Ok(())) => {}
                (Err(error), Err(named)) => {
                    assert!(error.to_string().contains(named), "{error}");
                }
                (result, _) => panic!("{:?} for {files:?}", result.map(|_| ())),
            }
        }
    }
}
