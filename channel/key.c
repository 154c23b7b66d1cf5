/* The cluster's key: one line of 64 hexadecimal digits in a file that only its owner can read. */
#include <errno.h>
#include <fcntl.h>
#include <openssl/core_names.h>
#include <openssl/kdf.h>
#include <openssl/params.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "channel/channel.h"
#include "channel/tls.h"

enum { DIGITS = 2 * CHANNEL_KEY_SIZE };

int channel_key_make(const char *path, struct err *err)
{
	uint8_t bytes[CHANNEL_KEY_SIZE];
	char text[DIGITS + 2];
	auto_close int fd = -1;
	int r;

	if (getrandom(bytes, sizeof(bytes), 0) != sizeof(bytes))
		return err_sys(err, "make a key");
	for (int i = 0; i < CHANNEL_KEY_SIZE; i++)
		snprintf(text + 2 * i, 3, "%02x", bytes[i]);
	strcpy(text + DIGITS, "\n");
	fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (fd < 0 && errno == EEXIST)
		return err_set(err, -EEXIST, "%s already exists; it is left as it is", path);
	if (fd < 0)
		return err_sys(err, "make key file %s", path);
	r = fchmod(fd, 0600) < 0 ? -errno : io_write_full(fd, text, DIGITS + 1);
	if (r == 0 && fsync(fd) < 0)
		r = -errno;
	explicit_bzero(text, sizeof(text));
	explicit_bzero(bytes, sizeof(bytes));
	if (r < 0) {
		unlink(path);
		return err_code(err, r, "write key file %s", path);
	}
	return 0;
}

static int hex_digit(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	if (c >= 'a' && c <= 'f')
		return c - 'a' + 10;
	return -1;
}

static int parse_key_text(const char *text, size_t len, struct channel_key *out)
{
	if (len == DIGITS + 1 && text[DIGITS] == '\n')
		len--;
	if (len != DIGITS)
		return -EINVAL;
	for (int i = 0; i < CHANNEL_KEY_SIZE; i++) {
		int high = hex_digit(text[2 * i]), low = hex_digit(text[2 * i + 1]);

		if (high < 0 || low < 0)
			return -EINVAL;
		out->bytes[i] = (uint8_t)(high << 4 | low);
	}
	return 0;
}

int channel_key_load(const char *path, struct channel_key *out, struct err *err)
{
	auto_close int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	char text[DIGITS + 2];
	struct stat st;
	ssize_t n;
	int r;

	if (fd < 0 || fstat(fd, &st) < 0)
		return err_sys(err, "open key file %s", path);
	if (!S_ISREG(st.st_mode))
		return err_set(err, -EINVAL, "key file %s is not a regular file", path);
	if (st.st_uid != geteuid())
		return err_set(err, -EPERM, "key file %s belongs to user %u, not to you", path,
			       (unsigned)st.st_uid);
	if (st.st_mode & 077)
		return err_set(err, -EPERM, "key file %s can be read by others; run chmod 600 on it", path);
	n = io_read_full(fd, text, sizeof(text));
	if (n < 0)
		return err_code(err, (int)n, "read key file %s", path);
	r = parse_key_text(text, (size_t)n, out);
	explicit_bzero(text, sizeof(text));
	if (r < 0)
		return err_set(err, r, "%s is not a key file; `pbeamd --make-key FILE` makes one", path);
	return 0;
}

int channel_key_derive(const struct channel_key *key, struct tls_psk *out)
{
	static char info[] = "pbeam channel tls psk", digest[] = "SHA256", salt[] = "pbeam";
	EVP_KDF *kdf = EVP_KDF_fetch(NULL, "HKDF", NULL);
	EVP_KDF_CTX *ctx = kdf ? EVP_KDF_CTX_new(kdf) : NULL;
	OSSL_PARAM params[] = {
		OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, digest, 0),
		OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_KEY, (void *)(uintptr_t)key->bytes,
						  CHANNEL_KEY_SIZE),
		OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_SALT, salt, sizeof(salt) - 1),
		OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_INFO, info, sizeof(info) - 1),
		OSSL_PARAM_construct_end(),
	};
	int ok = ctx && EVP_KDF_derive(ctx, out->secret, TLS_SECRET, params) > 0;

	EVP_KDF_CTX_free(ctx);
	EVP_KDF_free(kdf);
	out->identity = "pbeam cluster 1";
	return ok ? 0 : -EIO;
}
