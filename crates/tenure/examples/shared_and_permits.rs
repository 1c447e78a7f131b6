//! More than one holder: several readers at a time, and a limited number of permits.

#[tokio::main]
async fn main() -> Result<(), tenure::Error> {
    let client = tenure::connect("memory:").await?;

    let (read, write) = (client.lock("index").shared(), client.lock("index"));
    let readers = [read.acquire().await?, read.acquire().await?];
    assert!(
        write.try_acquire().await?.is_none(),
        "readers keep writers out"
    );
    for reader in readers {
        reader.release().await?;
    }
    let writer = write.acquire().await?;
    assert!(
        read.try_acquire().await?.is_none(),
        "a writer keeps everybody out"
    );
    writer.release().await?;

    // All clients that want a permit must name the same limit.
    let upload = client.lock("upload").permits(2);
    let first = upload.acquire().await?;
    let second = upload.acquire().await?;
    println!("{}, {}", first.mode(), second.mode());
    assert!(upload.try_acquire().await?.is_none());
    first.release().await?;
    assert!(upload.try_acquire().await?.is_some());
    Ok(())
}
