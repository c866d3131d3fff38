# What the boot script does in AWS' own way: on Amazon Linux, with a bucket of S3.
downloaded=/root/cairn.rpm

copy_from_bucket() { # bucket/key file
    aws s3 cp --only-show-errors "s3://$1" "$2"
}

is_installed() {
    command -v cairn-nvme-setup >/dev/null && command -v mkfs.ext4 >/dev/null && getent passwd cairn >/dev/null
}

# A boot that was cut may leave the package without the user, which its script makes.
install_package() {
    if rpm --query --quiet cairn && ! getent passwd cairn >/dev/null; then
        dnf reinstall --assumeyes --quiet "$downloaded" || return
    fi
    dnf install --assumeyes --quiet "$downloaded" e2fsprogs
}
