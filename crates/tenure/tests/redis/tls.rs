//! TLS that fails: what is wrong with which certificate, and what to change.

use tenure::ErrorKind::{Denied, Invalid, Unreachable};

use crate::support::{assert_says, connect, soon};
use tenure_testkit::needs;
use tenure_testkit::redis::{Certificates, PASSWORD, Redis, USER};

/// Nothing here is slow but a server that does not understand us and says nothing.
const TIMEOUT: &str = "timeout=1s";

/// `rediss://` with these options.
fn url(server: &Redis, options: &[String]) -> String {
    format!("{}?{TIMEOUT}&{}", server.tls_url(), options.join("&"))
}

/// An option that names a file.
fn option(key: &str, certificates: &Certificates, file: &str) -> String {
    format!("{key}={}", certificates.file(file).display())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_that_is_not_good_enough_is_named_with_its_fault() {
    needs!(redis, "openssl");
    let certificates = Certificates::make();
    let ca = option("ca", &certificates, "ca.crt");
    let foreign = option("ca", &certificates, "foreign.crt");
    let good = Redis::start_tls(&certificates);
    let client = connect(&url(&good, std::slice::from_ref(&ca))).await;
    client.close().await;

    let at = format!("127.0.0.1:{}", good.tls_port());
    for options in [&[][..], &[foreign]] {
        let refused = soon(tenure::connect(&url(&good, options))).await;
        let words = [
            &at,
            "signed by an authority that is not trusted",
            "ca=FILE",
            "UnknownIssuer",
        ];
        assert_says(refused, Unreachable, &words);
    }
    for (name, words) in [
        ("misnamed", ["another name", "elsewhere.invalid"]),
        ("expired", ["has expired", "renew it"]),
    ] {
        let bad = Redis::start_tls_as(&certificates, name, false);
        let at = format!("127.0.0.1:{}", bad.tls_port());
        let refused = soon(tenure::connect(&url(&bad, std::slice::from_ref(&ca)))).await;
        assert_says(refused, Unreachable, &[&at, words[0], words[1]]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_on_one_side_only_says_which_scheme_to_write() {
    needs!(redis, "openssl");
    let certificates = Certificates::make();
    let server = Redis::start_tls(&certificates);
    // What a server makes of a greeting that it does not understand depends on the bytes in there.
    for _ in 0..5 {
        let plain = format!("rediss://{USER}:{PASSWORD}@{}/?{TIMEOUT}", server.address());
        let refused = soon(tenure::connect(&plain)).await;
        assert_says(refused, Unreachable, &[&server.address(), "write redis://"]);
    }
    let secret = format!("{}?{TIMEOUT}", server.url_by(server.tls_port()));
    let at = format!("127.0.0.1:{}", server.tls_port());
    let refused = soon(tenure::connect(&secret)).await;
    assert_says(refused, Unreachable, &[&at, "write rediss://"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_may_want_a_certificate_of_ours() {
    needs!(redis, "openssl");
    let certificates = Certificates::make();
    let server = Redis::start_tls_as(&certificates, "server", true);
    let ca = option("ca", &certificates, "ca.crt");
    let ours = |name| {
        [
            ca.clone(),
            option("cert", &certificates, &format!("{name}.crt")),
            option("key", &certificates, &format!("{name}.key")),
        ]
    };
    connect(&url(&server, &ours("server"))).await.close().await;
    for options in [&[ca.clone()][..], &ours("foreign")] {
        let refused = soon(tenure::connect(&url(&server, options))).await;
        assert_says(refused, Denied, &["certificate of ours", "cert=FILE"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn files_that_are_no_certificates_or_keys_are_named() {
    needs!(redis, "openssl");
    let certificates = Certificates::make();
    std::fs::write(certificates.file("empty"), "").unwrap();
    let broken = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    std::fs::write(certificates.file("broken"), broken).unwrap();
    for (ca, cert, key, culprit, option_named) in [
        ("nothing.crt", "", "", "nothing.crt", "cannot be read"),
        ("server.key", "", "", "server.key", "`ca`"),
        ("empty", "", "", "empty", "`ca`"),
        ("broken", "", "", "broken", "`ca`"),
        ("ca.crt", "empty", "server.key", "empty", "`cert`"),
        ("ca.crt", "server.crt", "empty", "empty", "`key`"),
        ("ca.crt", "server.crt", "server.crt", "server.crt", "`key`"),
        (
            "ca.crt",
            "server.crt",
            "foreign.key",
            "foreign.key",
            "`key`",
        ),
        ("ca.crt", "broken", "server.key", "server.key", "`cert`"),
    ] {
        let mut options = vec![option("ca", &certificates, ca)];
        if !cert.is_empty() {
            options.push(option("cert", &certificates, cert));
            options.push(option("key", &certificates, key));
        }
        // The error comes before any request: no server listens at that port.
        let url = format!("rediss://127.0.0.1:1/?{TIMEOUT}&{}", options.join("&"));
        let refused = soon(tenure::connect(&url)).await;
        assert_says(refused, Invalid, &[culprit, option_named]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_of_the_wrong_sort_says_what_to_make_instead() {
    needs!(redis, "openssl");
    let certificates = Certificates::make();
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -batch";
    certificates.openssl(&format!(
        "req -x509 {key} -days 2 -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1 -keyout authority.key -out authority.crt"
    ));
    certificates.openssl(&format!(
        "req {key} -subj /CN=localhost -keyout old.key -out old.csr"
    ));
    certificates.openssl(
        "x509 -req -in old.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 -out old.crt",
    );
    for (name, ca, words) in [
        ("authority", "authority.crt", ["CA:TRUE", "CA:FALSE"]),
        ("old", "ca.crt", ["version 1", "of version 3"]),
    ] {
        let server = Redis::start_tls_as(&certificates, name, false);
        let ca = option("ca", &certificates, ca);
        let refused = soon(tenure::connect(&url(&server, &[ca]))).await;
        let words = [words[0], words[1], "subjectAltName"];
        assert_says(refused, Unreachable, &words);
    }
    certificates.openssl("pkey -in server.key -aes256 -passout pass:secret -out encrypted.key");
    certificates.openssl("ec -in server.key -aes256 -passout pass:secret -out older.key");
    for file in ["encrypted.key", "older.key"] {
        let options = [
            option("cert", &certificates, "server.crt"),
            option("key", &certificates, file),
        ];
        let url = format!("rediss://127.0.0.1:1/?{}", options.join("&"));
        let refused = soon(tenure::connect(&url)).await;
        assert_says(refused, Invalid, &[file, "is encrypted", "openssl pkey"]);
    }
}
