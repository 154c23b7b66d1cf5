#include "channel/records.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/kdf.h>
#include <openssl/params.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "proto/frame.h"

enum {
	HEAD = 5,
	TAG = 16,
	NONCE = 12,
	KEY = 16,
	TYPE = 1,	       /* byte behind the content */
	CONTENT_MAX = 1 << 14, /* RFC 8446, 5.1 */
	SEALED_MAX = CONTENT_MAX + 256,
	ROOM = 256 << 10,
	EARLY_MAX = 64 << 10,
	ALERT = 21,
	HANDSHAKE = 22,
	DATA = 23,
	KEY_UPDATE = 24,
};
#define RECORDS_OF_A_KEY (1ull << 24) /* RFC 8446, 5.5: 2^24.5 for AES-GCM */

struct way {
	EVP_CIPHER_CTX *cipher;
	uint8_t secret[RECORDS_SECRET], iv[NONCE];
	uint64_t count;
};

struct records {
	int tcp;
	struct way ways[RECORDS_WAYS];
	uint8_t *in, *out; /* ROOM each */
	size_t at, have;   /* in `in`: what has come and was not read */
	size_t due;	   /* in `out` */
	uint8_t *rest;	   /* of a record for which the reader had no room, or what came before */
	size_t rest_at, rest_have;
	bool ended;
};

/* ---- keys ---- */

/* HKDF-Expand-Label without a context (RFC 8446, 7.1). */
static int expand(const uint8_t *secret, const char *label, uint8_t *out, size_t len)
{
	static char digest[] = "SHA256";
	int mode = EVP_KDF_HKDF_MODE_EXPAND_ONLY;
	uint8_t info[64];
	int n = snprintf((char *)info + 3, sizeof(info) - 3, "tls13 %s", label);
	EVP_KDF *kdf = EVP_KDF_fetch(NULL, "HKDF", NULL);
	EVP_KDF_CTX *ctx = kdf ? EVP_KDF_CTX_new(kdf) : NULL;
	OSSL_PARAM params[] = {
		OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, digest, 0),
		OSSL_PARAM_construct_int(OSSL_KDF_PARAM_MODE, &mode),
		OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_KEY, (void *)(uintptr_t)secret,
						  RECORDS_SECRET),
		OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_INFO, info, (size_t)n + 4),
		OSSL_PARAM_construct_end(),
	};
	int ok;

	info[0] = (uint8_t)(len >> 8);
	info[1] = (uint8_t)len;
	info[2] = (uint8_t)n;
	info[3 + n] = 0;
	ok = ctx && EVP_KDF_derive(ctx, out, len, params) > 0;
	EVP_KDF_CTX_free(ctx);
	EVP_KDF_free(kdf);
	return ok ? 0 : -EIO;
}

static int use_secret(struct way *way, bool writes)
{
	uint8_t key[KEY];
	int r = expand(way->secret, "key", key, sizeof(key));

	if (r == 0)
		r = expand(way->secret, "iv", way->iv, sizeof(way->iv));
	if (r == 0 && EVP_CipherInit_ex(way->cipher, EVP_aes_128_gcm(), NULL, key, NULL, writes) != 1)
		r = -EIO;
	OPENSSL_cleanse(key, sizeof(key));
	return r;
}

static int next_secret(struct way *way, bool writes)
{
	uint8_t next[RECORDS_SECRET];
	int r = expand(way->secret, "traffic upd", next, sizeof(next));

	memcpy(way->secret, next, sizeof(next));
	OPENSSL_cleanse(next, sizeof(next));
	way->count = 0;
	return r < 0 ? r : use_secret(way, writes);
}

/* The nonce of the next record. */
static int begin(struct way *way)
{
	uint8_t nonce[NONCE];

	memcpy(nonce, way->iv, sizeof(nonce));
	for (int i = 0; i < 8; i++)
		nonce[NONCE - 1 - i] ^= (uint8_t)(way->count >> (8 * i));
	way->count++;
	return EVP_CipherInit_ex(way->cipher, NULL, NULL, NULL, nonce, -1) == 1 ? 0 : -EIO;
}

/* ---- writing ---- */

static int send_out(struct records *records)
{
	size_t done = 0;

	while (done < records->due) {
		ssize_t n = send(records->tcp, records->out + done, records->due - done, MSG_NOSIGNAL);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return errno == EAGAIN ? -ETIMEDOUT : -errno;
		done += (size_t)n;
	}
	records->due = 0;
	return 0;
}

/* One record; there is room for it. */
static int seal(struct records *records, uint8_t type, const uint8_t *content, size_t len)
{
	struct way *way = &records->ways[RECORDS_WRITE];
	const size_t sealed = len + TYPE + TAG;
	uint8_t *head = records->out + records->due, *at = head + HEAD;
	int n, r = begin(way);

	head[0] = DATA;
	head[1] = head[2] = 3;
	head[3] = (uint8_t)(sealed >> 8);
	head[4] = (uint8_t)sealed;
	if (r < 0 || EVP_EncryptUpdate(way->cipher, NULL, &n, head, HEAD) != 1 ||
	    EVP_EncryptUpdate(way->cipher, at, &n, content, (int)len) != 1 ||
	    EVP_EncryptUpdate(way->cipher, at + len, &n, &type, TYPE) != 1 ||
	    EVP_EncryptFinal_ex(way->cipher, at + len + TYPE, &n) != 1 ||
	    EVP_CIPHER_CTX_ctrl(way->cipher, EVP_CTRL_AEAD_GET_TAG, TAG, at + len + TYPE) != 1)
		return -EIO;
	records->due += HEAD + sealed;
	return 0;
}

static int put_record(struct records *records, uint8_t type, const uint8_t *content, size_t len)
{
	int r = ROOM - records->due < HEAD + len + TYPE + TAG ? send_out(records) : 0;

	return r < 0 ? r : seal(records, type, content, len);
}

static int update_key(struct records *records)
{
	static const uint8_t update[] = {KEY_UPDATE, 0, 0, 1, 0 /* we do not ask for the other side's */};
	int r = put_record(records, HANDSHAKE, update, sizeof(update));

	return r < 0 ? r : next_secret(&records->ways[RECORDS_WRITE], true);
}

int records_put(struct records *records, const void *data, size_t len)
{
	const uint8_t *at = data;
	int r = 0;

	while (len && r == 0) {
		const size_t n = len < CONTENT_MAX ? len : CONTENT_MAX;

		if (records->ways[RECORDS_WRITE].count >= RECORDS_OF_A_KEY)
			r = update_key(records);
		if (r == 0)
			r = put_record(records, DATA, at, n);
		at += n;
		len -= n;
	}
	return r;
}

int records_flush(struct records *records)
{
	return send_out(records);
}

/* ---- reading ---- */

/* The whole of the next record is in `in`. Its length, 0 when the connection has ended between records. */
static ssize_t await_record(struct records *records)
{
	for (;;) {
		const uint8_t *head = records->in + records->at;
		const size_t have = records->have - records->at;
		size_t len = 0;
		ssize_t n;

		if (have >= HEAD) {
			len = (size_t)head[3] << 8 | head[4];
			if (head[0] != DATA || len < TYPE + TAG || len > SEALED_MAX)
				return -EBADMSG;
			if (have >= HEAD + len)
				return (ssize_t)(HEAD + len);
		}
		if (records->at && ROOM - records->at < HEAD + SEALED_MAX) {
			memmove(records->in, head, have);
			records->at = 0;
			records->have = have;
		}
		n = recv(records->tcp, records->in + records->have, ROOM - records->have, 0);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return errno == EAGAIN ? -ETIMEDOUT : -errno;
		if (n == 0)
			return have ? -EPIPE : 0;
		records->have += (size_t)n;
	}
}

/* Its content goes to `to`, which has room for it. Who padded it is not of ours. */
static int open_record(struct records *records, size_t whole, uint8_t *to, uint8_t *type)
{
	struct way *way = &records->ways[RECORDS_READ];
	uint8_t *head = records->in + records->at, *at = head + HEAD;
	const size_t len = whole - HEAD - TYPE - TAG;
	int n, r = len > CONTENT_MAX ? -EBADMSG : begin(way);

	if (r < 0 || EVP_DecryptUpdate(way->cipher, NULL, &n, head, HEAD) != 1 ||
	    EVP_DecryptUpdate(way->cipher, to, &n, at, (int)len) != 1 ||
	    EVP_DecryptUpdate(way->cipher, type, &n, at + len, TYPE) != 1 ||
	    EVP_CIPHER_CTX_ctrl(way->cipher, EVP_CTRL_AEAD_SET_TAG, TAG, at + len + TYPE) != 1 ||
	    EVP_DecryptFinal_ex(way->cipher, type + TYPE, &n) != 1)
		return -EBADMSG;
	records->at += whole;
	if (records->at == records->have)
		records->at = records->have = 0;
	return 0;
}

/* What is no data: the other side closes, or changes its key. */
static int obey(struct records *records, uint8_t type, const uint8_t *content, size_t len)
{
	if (type == ALERT && len == 2 && content[1] == 0) {
		records->ended = true;
		return 0;
	}
	if (type == ALERT)
		return -ECONNRESET;
	if (type != HANDSHAKE || len != 5 || content[0] != KEY_UPDATE || content[1] || content[2] ||
	    content[3] != 1 || content[4] > 1)
		return -EBADMSG;
	if (next_secret(&records->ways[RECORDS_READ], false) < 0)
		return -EIO;
	return content[4] ? update_key(records) : 0;
}

static size_t take_rest(struct records *records, void *to, size_t len)
{
	const size_t left = records->rest_have - records->rest_at, n = left < len ? left : len;

	memcpy(to, records->rest + records->rest_at, n);
	records->rest_at += n;
	return n;
}

ssize_t records_read(struct records *records, void *to, size_t len)
{
	while (len) {
		uint8_t type[TYPE + TAG] = {0}, *content;
		ssize_t whole;
		size_t n;
		int r;

		if (records->rest_at < records->rest_have)
			return (ssize_t)take_rest(records, to, len);
		if (records->ended)
			return 0;
		whole = await_record(records);
		if (whole <= 0)
			return whole ? whole : -EPIPE;
		n = (size_t)whole - HEAD - TYPE - TAG;
		content = n <= len ? to : records->rest;
		r = open_record(records, (size_t)whole, content, type);
		if (r == 0 && type[0] != DATA)
			r = obey(records, type[0], content, n);
		if (r < 0)
			return r;
		if (type[0] != DATA || !n)
			continue;
		if (content == to)
			return (ssize_t)n;
		records->rest_at = 0;
		records->rest_have = n;
	}
	return 0;
}

/* ---- the beginning and the end ---- */

struct records *records_new(int tcp, const struct records_traffic *traffic)
{
	struct records *records = calloc(1, sizeof(*records));
	int r = fcntl(tcp, F_SETFL, 0);

	if (!records) {
		close(tcp);
		return NULL;
	}
	records->tcp = tcp;
	records->in = malloc(ROOM);
	records->out = malloc(ROOM);
	records->rest = malloc(EARLY_MAX);
	for (int i = 0; i < RECORDS_WAYS && r == 0; i++) {
		struct way *way = &records->ways[i];

		memcpy(way->secret, traffic->secret[i], RECORDS_SECRET);
		way->count = traffic->count[i];
		way->cipher = EVP_CIPHER_CTX_new();
		r = way->cipher ? use_secret(way, i == RECORDS_WRITE) : -ENOMEM;
	}
	if (r == 0 && records->in && records->out && records->rest)
		return records;
	records_close(records);
	return NULL;
}

void records_close(struct records *records)
{
	static const uint8_t close_notify[] = {1, 0};

	if (!records)
		return;
	if (records->out && records->ways[RECORDS_WRITE].cipher && !records->due &&
	    seal(records, ALERT, close_notify, sizeof(close_notify)) == 0 &&
	    send(records->tcp, records->out, records->due, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
		shutdown(records->tcp, SHUT_RDWR);
	close(records->tcp);
	for (int i = 0; i < RECORDS_WAYS; i++)
		EVP_CIPHER_CTX_free(records->ways[i].cipher);
	OPENSSL_cleanse(records->ways, sizeof(records->ways));
	free(records->in);
	free(records->out);
	free(records->rest);
	free(records);
}

int records_socket(const struct records *records)
{
	return records->tcp;
}

/* What the process had decrypted, up to its end. */
static int take_early(struct records *records, int sock)
{
	for (;;) {
		ssize_t n = recv(sock, records->rest + records->rest_have, EARLY_MAX - records->rest_have, 0);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && errno != ECONNRESET)
			return -errno;
		if (n <= 0)
			return 0;
		records->rest_have += (size_t)n;
		if (records->rest_have == EARLY_MAX)
			return -EMSGSIZE; /* the other side was not silent */
	}
}

ssize_t records_recv_descriptor(int sock, void *to, size_t len, int flags, int *fd)
{
	struct iovec iov = {to, len};
	union {
		char room[CMSG_SPACE(sizeof(int))];
		struct cmsghdr align;
	} control;
	struct msghdr msg = {
		.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};
	struct cmsghdr *cmsg;
	ssize_t n = recvmsg(sock, &msg, flags | MSG_CMSG_CLOEXEC);

	*fd = -1;
	cmsg = n > 0 ? CMSG_FIRSTHDR(&msg) : NULL;
	if (cmsg && cmsg->cmsg_level == SOL_SOCKET && cmsg->cmsg_type == SCM_RIGHTS)
		memcpy(fd, CMSG_DATA(cmsg), sizeof(*fd));
	return n;
}

static int ask(int sock, int answers, int ours, struct records_answer *answer, int *tcp, struct err *err)
{
	ssize_t n = frame_send_some(sock, "", 1, &answers, 1);

	close(answers); /* so that its end is seen */
	if (n < 0)
		return err_code(err, (int)n, "take a channel over");
	do
		n = records_recv_descriptor(ours, answer, sizeof(*answer), MSG_WAITALL, tcp);
	while (n < 0 && errno == EINTR);
	if (n != (ssize_t)sizeof(*answer) || (answer->given && *tcp < 0))
		return err_set(err, -EPIPE, "the channel has ended");
	return answer->given ? 0 : err_set(err, -EAGAIN, "something is under way on the channel");
}

int records_take_over(int sock, struct records **out, struct err *err)
{
	struct records_answer answer;
	auto_close int ours = -1, tcp = -1;
	int pair[2], r;

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
		return err_sys(err, "take a channel over");
	ours = pair[0];
	r = ask(sock, pair[1], ours, &answer, &tcp, err);
	if (r < 0)
		return r;
	*out = records_new(steal_fd(&tcp), &answer.traffic);
	OPENSSL_cleanse(&answer, sizeof(answer));
	if (!*out)
		return err_set(err, -EPIPE, "no memory for a channel's records");
	r = take_early(*out, sock);
	if (r < 0) {
		records_close(*out);
		return err_set(err, -EPIPE, "take a channel over: %s", strerror(-r));
	}
	close(sock);
	return 0;
}
