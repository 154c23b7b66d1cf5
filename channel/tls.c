/*
 * TLS 1.3 with an external pre-shared key and (EC)DHE: both sides prove that they have the key, and recorded
 * traffic stays secret even if the key becomes known later. No certificates, tickets, early data or older
 * versions.
 *
 * OpenSSL 3.0 verifies the binder of a PSK itself: the server's "binder does not verify" means another key.
 * For a client without a PSK the server has no certificate, and the handshake fails.
 *
 * OpenSSL 3.0 never updates a key by itself. Each side updates its sending key after 2^24 records: RFC 8446,
 * 5.5 allows AES-GCM 2^24.5 full records under one key.
 */
#include "channel/tls.h"

#include <errno.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#include "base/io.h"

enum { HANDSHAKE_MS = 10000 };
#define RECORDS_MAX (1ull << 24)

static const unsigned char suite[] = {0x13, 0x01}; /* TLS_AES_128_GCM_SHA256 */
static const char suite_name[] = "TLS_AES_128_GCM_SHA256";

/* ---- setting up ---- */

static SSL_SESSION *psk_session(SSL *ssl)
{
	const struct tls *tls = SSL_get_app_data(ssl);
	const SSL_CIPHER *cipher = SSL_CIPHER_find(ssl, suite);
	SSL_SESSION *session = cipher ? SSL_SESSION_new() : NULL;

	if (session && SSL_SESSION_set1_master_key(session, tls->psk.secret, TLS_SECRET) &&
	    SSL_SESSION_set_cipher(session, cipher) &&
	    SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION))
		return session;
	SSL_SESSION_free(session);
	return NULL;
}

static int use_session(SSL *ssl, const EVP_MD *digest, const unsigned char **id, size_t *len,
		       SSL_SESSION **session)
{
	const struct tls *tls = SSL_get_app_data(ssl);

	*id = (const unsigned char *)tls->psk.identity;
	*len = strlen(tls->psk.identity);
	*session = psk_session(ssl);
	return *session != NULL;
}

static int find_session(SSL *ssl, const unsigned char *id, size_t len, SSL_SESSION **session)
{
	const struct tls *tls = SSL_get_app_data(ssl);
	bool known = len == strlen(tls->psk.identity) && memcmp(id, tls->psk.identity, len) == 0;

	*session = known ? psk_session(ssl) : NULL;
	return !known || *session;
}

static SSL_CTX *new_context(enum tls_role role)
{
	SSL_CTX *ctx = SSL_CTX_new(role == TLS_SERVER ? TLS_server_method() : TLS_client_method());

	if (!ctx || !SSL_CTX_set_min_proto_version(ctx, TLS1_3_VERSION) ||
	    !SSL_CTX_set_max_proto_version(ctx, TLS1_3_VERSION) ||
	    !SSL_CTX_set_ciphersuites(ctx, suite_name) || !SSL_CTX_set_num_tickets(ctx, 0)) {
		SSL_CTX_free(ctx);
		return NULL;
	}
	SSL_CTX_set_session_cache_mode(ctx, SSL_SESS_CACHE_OFF);
	SSL_CTX_set_options(ctx, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION);
	/* the PSK authenticates the peer; a server has no certificate */
	SSL_CTX_set_verify(ctx, SSL_VERIFY_NONE, NULL);
	SSL_CTX_set_psk_use_session_callback(ctx, use_session);
	SSL_CTX_set_psk_find_session_callback(ctx, find_session);
	SSL_CTX_set_read_ahead(ctx, 1);
	SSL_CTX_set_default_read_buffer_len(ctx, TLS_PIECE);
	/* one record for each SSL_write(), so that records can be counted */
	SSL_CTX_set_mode(ctx, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
	return ctx;
}

static SSL *new_ssl(struct tls *tls)
{
	SSL_CTX *ctx = new_context(tls->role);
	SSL *ssl = ctx ? SSL_new(ctx) : NULL;
	BIO *in = ssl ? BIO_new_socket(tls->tcp, BIO_NOCLOSE) : NULL;
	BIO *out = in ? BIO_new(BIO_s_mem()) : NULL;

	SSL_CTX_free(ctx);
	if (!out || !SSL_set_app_data(ssl, tls)) {
		BIO_free(in);
		BIO_free(out);
		SSL_free(ssl);
		return NULL;
	}
	SSL_set_bio(ssl, in, out);
	if (tls->role == TLS_SERVER)
		SSL_set_accept_state(ssl);
	else
		SSL_set_connect_state(ssl);
	return ssl;
}

struct tls *tls_new(int tcp, const struct tls_psk *psk, enum tls_role role, struct err *err)
{
	struct tls *tls = calloc(1, sizeof(*tls));

	if (tls) {
		tls->tcp = tcp;
		tls->role = role;
		tls->psk = *psk;
		tls->records_max = RECORDS_MAX;
		tls->ssl = new_ssl(tls);
	}
	if (!tls || !tls->ssl) {
		tls_free(tls);
		err_set(err, -ENOMEM, "TLS cannot be set up");
		return NULL;
	}
	return tls;
}

void tls_free(struct tls *tls)
{
	if (!tls)
		return;
	SSL_free(tls->ssl);
	OPENSSL_cleanse(&tls->psk, sizeof(tls->psk));
	free(tls);
}

/* ---- sending ---- */

/* The records in memory that have not been sent. */
static char *unsent_records(const struct tls *tls, size_t *len)
{
	char *data;
	long n = BIO_get_mem_data(SSL_get_wbio(tls->ssl), &data);

	*len = n > 0 ? (size_t)n - tls->sent : 0;
	return data + tls->sent;
}

size_t tls_unsent(const struct tls *tls)
{
	size_t len;

	unsent_records(tls, &len);
	return len;
}

int tls_send(struct tls *tls, int flags)
{
	size_t len;
	const char *data = unsent_records(tls, &len);

	while (len > 0) {
		ssize_t n = io_send(tls->tcp, data, len, flags | MSG_NOSIGNAL);

		if (n < 0)
			return (int)n;
		tls->sent += (size_t)n;
		data += n;
		len -= (size_t)n;
	}
	if (tls->sent) {
		(void)BIO_reset(SSL_get_wbio(tls->ssl));
		tls->sent = 0;
	}
	return 0;
}

ssize_t tls_write(struct tls *tls, const void *data, size_t len)
{
	size_t n = 0;

	ERR_clear_error();
	if (tls->records >= tls->records_max) {
		if (!SSL_key_update(tls->ssl, SSL_KEY_UPDATE_NOT_REQUESTED))
			return -EIO;
		tls->records = 0;
	}
	if (!SSL_write_ex(tls->ssl, data, len, &n)) /* writes to memory never wait */
		return -EIO;
	tls->records++;
	return (ssize_t)n;
}

void tls_close_notify(struct tls *tls)
{
	ERR_clear_error();
	SSL_shutdown(tls->ssl);
}

/* ---- receiving ---- */

ssize_t tls_read(struct tls *tls, void *to, size_t len)
{
	size_t n = 0;

	ERR_clear_error();
	errno = 0;
	if (SSL_read_ex(tls->ssl, to, len, &n))
		return (ssize_t)n;
	switch (SSL_get_error(tls->ssl, 0)) {
	case SSL_ERROR_ZERO_RETURN:
		return 0;
	case SSL_ERROR_WANT_READ:
	case SSL_ERROR_WANT_WRITE:
		return -EAGAIN;
	case SSL_ERROR_SYSCALL:
		return errno ? -errno : -EPIPE;
	default:
		return ERR_GET_REASON(ERR_peek_error()) == SSL_R_UNEXPECTED_EOF_WHILE_READING ? -EPIPE
											      : -EBADMSG;
	}
}

/* ---- the handshake ---- */

int tls_export(struct tls *tls, uint8_t out[TLS_SECRET])
{
	static const char label[] = "EXPORTER-pbeam-stream";

	return SSL_export_keying_material(tls->ssl, out, TLS_SECRET, label, sizeof(label) - 1, NULL, 0, 0) ==
			       1
		       ? 0
		       : -EIO;
}

/* Translates the error of a failed handshake into a code and the end of a message. */
static int explain_handshake(enum tls_role role, struct err *err)
{
	unsigned long error = ERR_peek_error();

	switch (ERR_GET_LIB(error) == ERR_LIB_SSL ? ERR_GET_REASON(error) : 0) {
	case SSL_R_BINDER_DOES_NOT_VERIFY:
	case SSL_R_SSLV3_ALERT_ILLEGAL_PARAMETER:
	case SSL_R_TLSV1_ALERT_DECRYPT_ERROR:
	case SSL_R_TLSV1_ALERT_UNKNOWN_PSK_IDENTITY:
		return err_set(err, -EKEYREJECTED, "it has another cluster key");
	case SSL_R_NO_SUITABLE_SIGNATURE_ALGORITHM:
	case SSL_R_NO_SHARED_CIPHER:
	case SSL_R_NO_CERTIFICATE_SET:
		return err_set(err, -EKEYREJECTED, "it has no cluster key");
	case SSL_R_TLSV1_ALERT_ACCESS_DENIED:
		return err_set(
			err, -EBUSY,
			"it has too many connections without a greeting, and refuses more from here; try "
			"again later (--max-startups of its pbeamd is the limit)");
	case SSL_R_UNSUPPORTED_PROTOCOL:
		return err_set(err, -EPROTO, "it does not speak TLS 1.3");
	case 0:
	case SSL_R_UNEXPECTED_EOF_WHILE_READING:
		return err_set(err, -EPROTO, "it ended the connection during the handshake");
	default:
		return err_set(err, -EPROTO, "%s does not speak TLS 1.3 with a cluster key (%s)",
			       role == TLS_SERVER ? "it" : "the process that listens there",
			       ERR_reason_error_string(error) ? ERR_reason_error_string(error) : "unknown");
	}
}

static int wait_for_peer(const struct tls *tls, int local, uint64_t until, struct err *err)
{
	const short events = tls_unsent(tls) ? POLLOUT | POLLIN : POLLIN;
	struct pollfd fds[2] = {{.fd = tls->tcp, .events = events}, {.fd = local}};
	uint64_t now = io_now_ns(CLOCK_MONOTONIC);

	if (now >= until)
		return err_set(err, -ETIMEDOUT, "it did not complete the handshake within %d s",
			       HANDSHAKE_MS / 1000);
	if (poll(fds, 2, (int)((until - now) / 1000000) + 1) < 0 && errno != EINTR)
		return err_sys(err, "handshake");
	return fds[1].revents ? err_set(err, -EPIPE, "the channel is no longer wanted") : 0;
}

/* The peer takes nothing more. It may have sent an alert before: the reason. */
static int explain_refusal(struct tls *tls, struct err *err)
{
	ERR_clear_error();
	if (SSL_do_handshake(tls->ssl) == 1)
		ERR_clear_error();
	return explain_handshake(tls->role, err);
}

int tls_handshake(struct tls *tls, int local, struct err *err)
{
	uint64_t until = io_now_ns(CLOCK_MONOTONIC) + HANDSHAKE_MS * 1000000ull;

	for (;;) {
		int done, error, sent, r;

		ERR_clear_error();
		done = SSL_do_handshake(tls->ssl);
		error = SSL_get_error(tls->ssl, done);
		r = done == 1 || error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE
			    ? 0
			    : explain_handshake(tls->role, err);
		sent = tls_send(tls, MSG_DONTWAIT); /* on failure, the alert with the reason */
		if (r < 0)
			return r;
		if (done == 1)
			return SSL_session_reused(tls->ssl) ? 0 : explain_handshake(tls->role, err);
		if (sent < 0 && sent != -EAGAIN)
			return explain_refusal(tls, err);
		r = wait_for_peer(tls, local, until, err);
		if (r < 0)
			return r;
	}
}
