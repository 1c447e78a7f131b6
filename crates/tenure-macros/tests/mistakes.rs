//! What `#[tenure::locked]` says about mistakes, word for word (`ui/*.stderr`).

#[test]
fn mistakes_are_explained_where_they_were_made() {
    trybuild::TestCases::new().compile_fail("tests/ui/*.rs");
}
