//! A process with any certificate, or none, that takes whoever answers.

use cairn_tls::issue::Issued;
use hyper_util::rt::TokioIo;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, Error, SignatureScheme};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tonic::codegen::{Service, http::Uri};
use tonic::transport::{Channel, Endpoint};

#[derive(Clone)]
pub struct Stranger(Arc<ClientConfig>);

impl Stranger {
    pub fn new(own: Option<&Issued>) -> Stranger {
        let provider = Arc::new(ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .expect("versions")
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Anyone(provider)));
        let config = match own {
            None => config.with_no_client_auth(),
            Some(own) => {
                let certificate = CertificateDer::from_pem_slice(own.certificate.as_bytes());
                let key = PrivateKeyDer::from_pem_slice(own.key.as_bytes()).expect("a key");
                config.with_client_auth_cert(vec![certificate.expect("one")], key).expect("a pair")
            }
        };
        Stranger(Arc::new(config))
    }

    /// The raw connection.
    pub async fn connect(self, address: String) -> io::Result<TlsStream<TcpStream>> {
        self.over(TcpStream::connect(address).await?).await
    }

    /// The same over a socket that is connected already.
    async fn over(self, socket: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        let host = ServerName::try_from("localhost").expect("a name");
        TlsConnector::from(self.0).connect(host, socket).await
    }

    /// For gRPC.
    pub fn channel(&self, address: &str) -> Channel {
        let endpoint = Endpoint::from_shared(format!("http://{address}")).expect("an address");
        endpoint.connect_with_connector_lazy(self.clone())
    }

    /// The certificate that the server shows.
    pub async fn shown(&self, address: &str) -> io::Result<CertificateDer<'static>> {
        let stream = self.clone().connect(address.to_owned()).await?;
        let shown = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
        Ok(shown.expect("a certificate").clone())
    }

    /// The answer to an HTTP request.
    pub async fn get(&self, address: &str, path: &str) -> io::Result<String> {
        self.get_over(TcpStream::connect(address).await?, path).await
    }

    /// The same over a socket that is connected already.
    pub async fn get_over(&self, socket: TcpStream, path: &str) -> io::Result<String> {
        let mut stream = self.clone().over(socket).await?;
        let request = format!("GET {path} HTTP/1.1\r\nhost: tested\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await?;
        Ok(String::from_utf8_lossy(&answer).into_owned())
    }
}

impl Service<Uri> for Stranger {
    type Response = TokioIo<TlsStream<TcpStream>>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let address = uri.authority().expect("an address").to_string();
        let connecting = self.clone().connect(address);
        Box::pin(async { connecting.await.map(TokioIo::new) })
    }
}

#[derive(Debug)]
struct Anyone(Arc<CryptoProvider>);

impl ServerCertVerifier for Anyone {
    fn verify_server_cert(
        &self,
        _certificate: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _host: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
