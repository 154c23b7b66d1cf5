/*
 * TLS 1.3 with an external pre-shared key and (EC)DHE: both sides prove that they have the cluster's key, and
 * what was recorded stays secret even if the key becomes known later. No certificates, tickets, early data or
 * older versions.
 *
 * OpenSSL 3.0 puts the binder of a PSK to the proof itself: the server's "binder does not verify" is another
 * key; a client that offers no PSK finds no certificate at the server, and so no handshake either.
 */
#include <errno.h>
#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/kdf.h>
#include <openssl/params.h>
#include <openssl/ssl.h>
#include <string.h>

#include "channel/tls.h"

enum { PSK_SIZE = 32, READ_AHEAD = 256 << 10 };

static const unsigned char suite[] = {0x13, 0x01}; /* TLS_AES_128_GCM_SHA256 */
static const char suite_name[] = "TLS_AES_128_GCM_SHA256";
static const unsigned char identity[] = "pbeam cluster 1";

/* One connection to a process: what its callbacks need, and what they have seen. */
static struct {
	unsigned char psk[PSK_SIZE];
	uint8_t secrets[2][RECORDS_SECRET]; /* of what a client (TLS_CLIENT) and a server write */
	bool known[2];
	uint64_t records[RECORDS_WAYS];
	bool other; /* records of another type than data, after the handshake */
} tls;

static int derive(const struct channel_key *key, unsigned char out[PSK_SIZE])
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
	int ok = ctx && EVP_KDF_derive(ctx, out, PSK_SIZE, params) > 0;

	EVP_KDF_CTX_free(ctx);
	EVP_KDF_free(kdf);
	return ok ? 0 : -EIO;
}

static SSL_SESSION *psk_session(SSL *ssl)
{
	const SSL_CIPHER *cipher = SSL_CIPHER_find(ssl, suite);
	SSL_SESSION *session = cipher ? SSL_SESSION_new() : NULL;

	if (session && SSL_SESSION_set1_master_key(session, tls.psk, sizeof(tls.psk)) &&
	    SSL_SESSION_set_cipher(session, cipher) &&
	    SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION))
		return session;
	SSL_SESSION_free(session);
	return NULL;
}

static int use_session(SSL *ssl, const EVP_MD *digest, const unsigned char **id, size_t *len,
		       SSL_SESSION **session)
{
	*id = identity;
	*len = sizeof(identity) - 1;
	*session = psk_session(ssl);
	return *session != NULL;
}

static int find_session(SSL *ssl, const unsigned char *id, size_t len, SSL_SESSION **session)
{
	bool ours = len == sizeof(identity) - 1 && memcmp(id, identity, len) == 0;

	*session = ours ? psk_session(ssl) : NULL;
	return !ours || *session;
}

/* A line of the key log format: the one way by which OpenSSL tells traffic secrets. */
static void learn_secret(const SSL *ssl, const char *line)
{
	static const char *const labels[] = {"CLIENT_TRAFFIC_SECRET_0 ", "SERVER_TRAFFIC_SECRET_0 "};
	size_t len = 0;

	for (int i = 0; i < 2; i++) {
		const char *hex =
			strncmp(line, labels[i], strlen(labels[i])) == 0 ? strrchr(line, ' ') : NULL;

		if (hex && OPENSSL_hexstr2buf_ex(tls.secrets[i], RECORDS_SECRET, &len, hex + 1, '\0') == 1)
			tls.known[i] = len == RECORDS_SECRET;
	}
}

/* Counts the records under the traffic secrets. */
static void count_record(int writes, int version, int type, const void *bytes, size_t len, SSL *ssl,
			 void *arg)
{
	const uint8_t *inner = bytes;

	if (type != SSL3_RT_INNER_CONTENT_TYPE || len != 1 || !SSL_is_init_finished(ssl))
		return;
	if (*inner == SSL3_RT_APPLICATION_DATA)
		tls.records[writes ? RECORDS_WRITE : RECORDS_READ]++;
	else
		tls.other = true;
}

bool tls_traffic(const SSL *ssl, enum tls_role role, struct records_traffic *out)
{
	const int own = role == TLS_CLIENT ? 0 : 1;

	if (!tls.known[0] || !tls.known[1] || tls.other || !SSL_is_init_finished(ssl) ||
	    SSL_has_pending(ssl) || strcmp(SSL_rstate_string(ssl), "RH") != 0)
		return false;
	memcpy(out->secret[RECORDS_WRITE], tls.secrets[own], RECORDS_SECRET);
	memcpy(out->secret[RECORDS_READ], tls.secrets[!own], RECORDS_SECRET);
	memcpy(out->count, tls.records, sizeof(out->count));
	return true;
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
	/* the peer is proven by the PSK; without one a server has no certificate to show either */
	SSL_CTX_set_verify(ctx, SSL_VERIFY_NONE, NULL);
	SSL_CTX_set_psk_use_session_callback(ctx, use_session);
	SSL_CTX_set_psk_find_session_callback(ctx, find_session);
	SSL_CTX_set_keylog_callback(ctx, learn_secret);
	SSL_CTX_set_msg_callback(ctx, count_record);
	SSL_CTX_set_read_ahead(ctx, 1);
	SSL_CTX_set_default_read_buffer_len(ctx, READ_AHEAD);
	SSL_CTX_set_mode(ctx, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
	return ctx;
}

SSL *tls_new(int tcp, const struct channel_key *key, enum tls_role role, struct err *err)
{
	SSL_CTX *ctx = derive(key, tls.psk) == 0 ? new_context(role) : NULL;
	SSL *ssl = ctx ? SSL_new(ctx) : NULL;
	BIO *in = ssl ? BIO_new_socket(tcp, BIO_NOCLOSE) : NULL;
	BIO *out = in ? BIO_new(BIO_s_mem()) : NULL;

	SSL_CTX_free(ctx);
	if (!out) {
		BIO_free(in);
		SSL_free(ssl);
		err_set(err, -ENOMEM, "TLS cannot be set up");
		return NULL;
	}
	SSL_set_bio(ssl, in, out);
	if (role == TLS_SERVER)
		SSL_set_accept_state(ssl);
	else
		SSL_set_connect_state(ssl);
	return ssl;
}

int tls_explain(enum tls_role role, struct err *err)
{
	unsigned long error = ERR_peek_error();

	switch (ERR_GET_LIB(error) == ERR_LIB_SSL ? ERR_GET_REASON(error) : 0) {
	case SSL_R_BINDER_DOES_NOT_VERIFY:
		return err_set(err, -EKEYREJECTED, "it has another cluster key");
	case SSL_R_SSLV3_ALERT_ILLEGAL_PARAMETER:
	case SSL_R_TLSV1_ALERT_DECRYPT_ERROR:
	case SSL_R_TLSV1_ALERT_UNKNOWN_PSK_IDENTITY:
		return err_set(err, -EKEYREJECTED, "it has another cluster key");
	case SSL_R_NO_SUITABLE_SIGNATURE_ALGORITHM:
	case SSL_R_NO_SHARED_CIPHER:
	case SSL_R_NO_CERTIFICATE_SET:
		return err_set(err, -EKEYREJECTED, "it has no cluster key");
	case SSL_R_UNSUPPORTED_PROTOCOL:
		return err_set(err, -EPROTO, "it does not speak TLS 1.3");
	case 0:
		return err_set(err, -EPROTO, "it ended the connection during the handshake");
	default:
		return err_set(err, -EPROTO, "%s does not speak TLS 1.3 with a cluster key (%s)",
			       role == TLS_SERVER ? "it" : "what listens there",
			       ERR_reason_error_string(error) ? ERR_reason_error_string(error) : "unknown");
	}
}
