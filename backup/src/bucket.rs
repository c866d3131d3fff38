//! Buckets: how they are reached, and what to do when they are not.
//!
//! What holds here: credentials, region and endpoint come from the environment, under the names that
//! each provider's own tools read, or from the machine's own role; none is in a file of ours. Every call
//! ends: a request after [`Limits::request`], and none begins when the first has failed for
//! [`Limits::retry`]. What a store says passes through [`Secrets`]: an endpoint may have a password in it.

use crate::shown::Secrets;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::client::HttpError;
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::path::Path;
use object_store::prefix::PrefixStore;
use object_store::{BackoffConfig, Error, ObjectStore, Result, RetryConfig};
use real_tokio::time::{sleep, timeout};
use std::error::Error as StdError;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Who has buckets.
struct Provider {
    scheme: &'static str,
    /// What the names of its variables begin with.
    variables: &'static str,
    /// Those that give credentials.
    credentials: &'static str,
    /// Those that say where the bucket is.
    place: &'static str,
}

static PROVIDERS: [Provider; 3] = [
    Provider {
        scheme: "s3",
        variables: "AWS_",
        credentials: "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
        place: "AWS_REGION and AWS_ENDPOINT_URL",
    },
    Provider {
        scheme: "gs",
        variables: "GOOGLE_",
        credentials: "GOOGLE_APPLICATION_CREDENTIALS",
        place: "GOOGLE_BASE_URL",
    },
    Provider {
        scheme: "az",
        variables: "AZURE_",
        credentials: "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
        place: "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ENDPOINT",
    },
];

/// How long a call may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// One request with its answer: 16 MiB over a slow line, beside three others.
    pub(crate) request: Duration,
    /// For so long a request that failed is made again.
    pub(crate) retry: Duration,
}

impl Limits {
    const USUAL: Limits =
        Limits { request: Duration::from_secs(180), retry: Duration::from_secs(30) };
}

/// A call may ask for credentials first.
const CALL_REQUESTS: u32 = 2;
/// A list makes a request for each thousand objects, and takes as long as so many other calls.
pub(crate) const LIST_CALLS: u32 = 10;
/// More than there is time for.
const RETRIES: usize = 1000;
/// Between two tries of a request.
const PAUSE: Duration = Duration::from_millis(200);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// The codes of an answer that there is no such bucket.
const NO_BUCKET: [&str; 2] = ["NoSuchBucket", "ContainerNotFound"];
/// The codes of an answer that the credentials are of no use, beside those with a status that says so.
const NO_ACCESS: [&str; 2] = ["ExpiredToken", "InvalidToken"];
/// A list has no other kind of error for these.
const NO_ACCESS_STATUS: [&str; 2] = ["status code: 401", "status code: 403"];
/// What the store says of a redirection that names no place.
const ELSEWHERE: &str = "incorrectly configured region";
/// Where a machine asks for the credentials of its role.
const ROLES: [&str; 4] =
    ["/latest/api/token", "169.254.169.254", "169.254.170.2", "metadata.google.internal"];

/// The variables that hold the URL of a server.
const ENDPOINTS: [&str; 13] = [
    "AWS_ENDPOINT",
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT_URL_S3",
    "AWS_ENDPOINT_URL_STS",
    "AWS_METADATA_ENDPOINT",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AZURE_AUTHORITY_HOST",
    "AZURE_STORAGE_AUTHORITY_HOST",
    "AZURE_ENDPOINT",
    "AZURE_STORAGE_ENDPOINT",
    "AZURE_IDENTITY_ENDPOINT",
    "AZURE_MSI_ENDPOINT",
    "GOOGLE_BASE_URL",
];

/// The variables that become a part of a server's name.
const HOST_PARTS: [&str; 3] = ["AWS_REGION", "AWS_DEFAULT_REGION", "AZURE_STORAGE_ACCOUNT_NAME"];
/// The variable that holds what follows the name of a server that gives credentials.
const OF_ROLE: &str = "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI";
/// The variables that become a part of a path.
const PATH_PARTS: [&str; 4] = [
    "AZURE_TENANT_ID",
    "AZURE_STORAGE_TENANT_ID",
    "AZURE_AUTHORITY_ID",
    "AZURE_STORAGE_AUTHORITY_ID",
];
/// The variable that holds a whole file.
const FILE: &str = "GOOGLE_SERVICE_ACCOUNT_KEY";

/// A bucket, below a prefix.
pub(crate) struct Bucket {
    provider: &'static Provider,
    name: String,
    limits: Limits,
    secrets: Secrets,
    /// Makes a request that fails again.
    pub(crate) store: Arc<dyn ObjectStore>,
    /// Makes each request once, so that the caller knows whether an earlier one may have been carried out.
    pub(crate) once: Arc<dyn ObjectStore>,
}

/// The variables of this process.
pub(crate) fn variables() -> impl Iterator<Item = (String, String)> {
    let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
        Some((name.into_string().ok()?, value.into_string().ok()?))
    };
    std::env::vars_os().filter_map(text)
}

/// What is wrong with the URL of a server, without the URL: the store panics at one that it cannot read, once it is
/// asked for something.
fn is_no_url(url: &str) -> Option<String> {
    match reqwest::Url::parse(url) {
        Err(error) => Some(error.to_string()),
        Ok(parsed) if !matches!(parsed.scheme(), "http" | "https") => {
            Some("expected http:// or https://".into())
        }
        Ok(_) => url.parse::<http::Uri>().err().map(|error| error.to_string()),
    }
}

impl Provider {
    /// Whether the store reads this variable. Others are of other tools.
    fn knows(&self, name: &str) -> bool {
        let name = name.to_ascii_lowercase();
        match self.scheme {
            "s3" => name.parse::<AmazonS3ConfigKey>().is_ok(),
            "gs" => name.parse::<GoogleConfigKey>().is_ok(),
            _ => name.parse::<AzureConfigKey>().is_ok(),
        }
    }

    /// What is wrong with a variable, without what it holds. The store panics at such values, some of them once it is
    /// asked for something: in a URL, in a header, and in a server's name.
    fn fault(&self, name: &str, value: &str) -> Option<String> {
        let known = name.to_ascii_uppercase();
        if !self.knows(name) || known == FILE {
            return None;
        }
        if value.contains(char::is_control) {
            return Some(format!(
                "{name} has a control character, such as a line break at its end: set it without"
            ));
        }
        if ENDPOINTS.contains(&known.as_str()) {
            return is_no_url(value).map(|why| format!("{name} is no URL: {why}"));
        }
        if known == OF_ROLE {
            let why = match value.starts_with('/') {
                true => is_no_url(&format!("http://169.254.170.2{value}")),
                false => Some("expected a path from / on".into()),
            };
            return why.map(|why| format!("{name} is no path of a URL: {why}"));
        }
        if PATH_PARTS.contains(&known.as_str()) {
            let why = is_no_url(&format!("https://login.example/{value}/oauth2"));
            return why.map(|why| format!("{name} cannot be in a URL: {why}"));
        }
        let usual = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
        let is_part = || {
            value.bytes().all(usual) && is_no_url(&format!("https://s3.{value}.example")).is_none()
        };
        (HOST_PARTS.contains(&known.as_str()) && !is_part()).then(|| {
            format!("{name} cannot be in a server's name: expected letters, digits and hyphens")
        })
    }
}

macro_rules! store {
    ($builder:ty, $url:expr, $prefix:expr, $variables:expr, $retry:expr) => {{
        let mut builder = <$builder>::new().with_retry($retry);
        for (name, value) in $variables {
            // What the store does not know is of another tool.
            if let Ok(key) = name.to_ascii_lowercase().parse() {
                builder = builder.with_config(key, value);
            }
        }
        let store = builder.with_url($url).build();
        store.map(|store| Arc::new(PrefixStore::new(store, $prefix)) as Arc<dyn ObjectStore>)
    }};
}

impl Bucket {
    /// The bucket that the text names, as these variables say. It is not asked yet.
    ///
    /// # Errors
    /// What is wrong with the text or with a variable.
    pub(crate) fn open(
        text: &str,
        variables: impl IntoIterator<Item = (String, String)>,
        limits: Option<Limits>,
    ) -> std::result::Result<Bucket, String> {
        let (scheme, rest) = text.split_once("://").unwrap_or_default();
        let Some(provider) = PROVIDERS.iter().find(|provider| provider.scheme == scheme) else {
            let reason =
                format!("`{scheme}` is not served; expected a folder, s3://, gs:// or az://");
            return Err(reason);
        };
        let (name, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let usual = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        // A token that was copied with a URL would be in every line that names the target.
        if name.is_empty() || !name.bytes().all(usual) || prefix.contains('?') {
            return Err(format!("expected {scheme}://BUCKET or {scheme}://BUCKET/PREFIX"));
        }
        // What the library says has the whole prefix in it.
        let prefix = Path::parse(prefix).map_err(|_| {
            format!(
                "expected {scheme}://BUCKET/PREFIX without an empty part, `.`, `..` or a control character in the prefix"
            )
        })?;
        let limits = limits.unwrap_or(Limits::USUAL);
        let own = |(name, _): &(String, String)| name.starts_with(provider.variables);
        let variables: Vec<(String, String)> = variables.into_iter().collect();
        // Others name proxies.
        let urls = variables.iter().filter(|&variable| own(variable) || variable.1.contains("://"));
        let secrets = Secrets::of(urls.map(|(_, value)| value.as_str()));
        let mut variables: Vec<(String, String)> = variables.into_iter().filter(own).collect();
        let fault = variables.iter().find_map(|(name, value)| provider.fault(name, value));
        if let Some(fault) = fault {
            return Err(fault);
        }
        let request = format!("{}ms", limits.request.as_millis());
        variables.push((format!("{}TIMEOUT", provider.variables), request));
        // One object is removed at a time, and a refusal of that has a status.
        variables.push(("AWS_DISABLE_BULK_DELETE".into(), "true".into()));
        // Nobody else in this process sets one, and the first one counts.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let store = |max_retries| {
            let backoff = BackoffConfig { max_backoff: PAUSE_MAX, ..BackoffConfig::default() };
            let retry = RetryConfig { backoff, max_retries, retry_timeout: limits.retry };
            let (url, prefix, variables) =
                (format!("{scheme}://{name}"), prefix.clone(), variables.clone());
            let store = match scheme {
                "s3" => store!(AmazonS3Builder, url, prefix, variables, retry),
                "gs" => store!(GoogleCloudStorageBuilder, url, prefix, variables, retry),
                _ => store!(MicrosoftAzureBuilder, url, prefix, variables, retry),
            };
            store.map_err(|error| said(&error, &secrets))
        };
        let (store, once) = (store(RETRIES)?, store(0)?);
        Ok(Bucket { provider, name: name.to_owned(), limits, secrets, store, once })
    }

    /// Ends a call that does not end by itself; one that lists takes longer.
    pub(crate) async fn bounded<T>(
        &self,
        calls: u32,
        call: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let most = (self.limits.request + self.limits.retry) * CALL_REQUESTS * calls;
        timeout(most, call).await.unwrap_or_else(|_| {
            let source = format!("no answer in {most:?}").into();
            Err(Error::Generic { store: "bucket", source })
        })
    }

    /// Whether the object is not there, and the bucket is.
    pub(crate) fn is_missing(&self, error: &Error) -> bool {
        matches!(error, Error::NotFound { .. }) && !is_one_of(&error.to_string(), &NO_BUCKET)
    }

    /// What is wrong, what helps, and what the store says.
    pub(crate) fn explain(&self, error: &Error) -> String {
        let Provider { variables, credentials, place, .. } = self.provider;
        let (bucket, text) = (&self.name, error.to_string());
        let what = match error {
            _ if is_one_of(&text, &NO_BUCKET) => {
                format!("there is no bucket `{bucket}`: make it, or correct its name, or {place}")
            }
            _ if ROLES.iter().any(|role| text.contains(role)) => {
                format!("no credentials: set {credentials}, or give this machine a role")
            }
            _ if is_one_of(&text, &NO_ACCESS)
                || NO_ACCESS_STATUS.iter().any(|status| text.contains(status)) =>
            {
                format!(
                    "access is denied: see that {credentials} are right, and may list, read, write and delete there"
                )
            }
            Error::AlreadyExists { .. } => "an object of this name is there already".into(),
            _ if text.contains(ELSEWHERE) => {
                format!("the bucket is elsewhere: correct {place}")
            }
            _ if innermost(error).contains("URL scheme is not allowed") => {
                format!("http:// is not encrypted: use https://, or set {variables}ALLOW_HTTP=true")
            }
            _ if is_of_line(error) => {
                format!("the bucket cannot be reached: see the network, and correct {place}")
            }
            _ => "the bucket does not do what is asked".into(),
        };
        format!("{what} ({})", said(error, &self.secrets))
    }
}

/// The tries of one call to a bucket.
pub(crate) struct Tries {
    retry: Duration,
    /// None begins then.
    until: Option<Instant>,
    pause: Duration,
    /// An earlier try may have been carried out.
    pub(crate) unclear: bool,
}

impl Tries {
    /// In a folder there is one.
    pub(crate) fn of(bucket: Option<&Bucket>) -> Tries {
        let retry = bucket.map_or(Duration::ZERO, |bucket| bucket.limits.retry);
        Tries { retry, until: None, pause: PAUSE, unclear: false }
    }

    /// Waits before the next try, if there is one. An error that has no kind of its own is of the line, or
    /// of a busy server. One says that the object is there, though it is not: an earlier try is under way.
    pub(crate) async fn again(&mut self, error: &Error) -> bool {
        self.unclear |= matches!(error, Error::Generic { .. }) || is_conflict(error);
        let exists = matches!(error, Error::AlreadyExists { .. });
        let now = Instant::now();
        let until = *self.until.get_or_insert(now + self.retry);
        if !self.unclear || !exists && is_refused(error) || now >= until {
            return false;
        }
        sleep(self.pause).await;
        self.pause = PAUSE_MAX.min(self.pause * 2);
        true
    }
}

/// Whether another request for the same object was under way: this one was not carried out.
pub(crate) fn is_conflict(error: &Error) -> bool {
    is_one_of(&error.to_string(), &["ConditionalRequestConflict", "OperationAborted"])
}

/// Whether the store answered with one of these codes.
fn is_one_of(text: &str, codes: &[&str]) -> bool {
    between(text, "Code").is_some_and(|code| codes.contains(&code))
}

/// Whether the server says that the request is not acceptable, however often it is made.
fn is_refused(error: &Error) -> bool {
    let text = error.to_string();
    let says = |statuses: &[&str]| statuses.iter().any(|status| text.contains(status));
    // S3 says that an upload was too slow with a status of a wrong request.
    says(&["status code: 3", "status code: 4", ELSEWHERE])
        && !says(&["status code: 408", "status code: 429"])
        && !is_one_of(&text, &["RequestTimeout"])
}

/// Whether the answer to a list broke off: the store does not make that again.
pub(crate) fn is_half(error: &Error) -> bool {
    error.to_string().contains("response body")
}

/// What is in this element of an answer in XML.
fn between<'a>(text: &'a str, element: &str) -> Option<&'a str> {
    let (_, inside) = text.split_once(&format!("<{element}>"))?;
    Some(inside.split_once(&format!("</{element}>"))?.0)
}

/// Whether no answer came.
fn is_of_line(error: &Error) -> bool {
    let mut source = error.source();
    while let Some(error) = source {
        if error.is::<HttpError>() {
            return true;
        }
        source = error.source();
    }
    error.to_string().contains("no answer in")
}

fn innermost(error: &Error) -> String {
    let mut inner: &dyn StdError = error;
    while let Some(source) = inner.source() {
        inner = source;
    }
    inner.to_string()
}

/// What the store says, in one line and without secrets.
fn said(error: &Error, secrets: &Secrets) -> String {
    let one_line =
        |text: &str| secrets.hidden_in(text).split_whitespace().collect::<Vec<_>>().join(" ");
    let text = error.to_string();
    if let Some(code) = between(&text, "Code") {
        let message = between(&text, "Message").unwrap_or_default();
        return format!("{}: {}", one_line(code), one_line(message));
    }
    let (text, inner) = (one_line(&text), one_line(&innermost(error)));
    match text.contains(&inner) {
        true => text,
        false => format!("{text}: {inner}"),
    }
}
