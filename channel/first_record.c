/*
 * The first record of a connection, looked at before a process is started for it.
 *
 * A client speaks first in TLS: its ClientHello, one handshake message, which in TLS 1.3 may be split over
 * records but never is when it fits one (RFC 8446, 5.1). Here it has to be one whole record. It stays in the
 * socket's queue, where OpenSSL reads it.
 */
#include <errno.h>
#include <linux/sockios.h>
#include <stdbool.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "channel/tls.h"

enum {
	RECORD_HEADER = 5,
	MESSAGE_HEADER = 4,
	RECORD_MAX = 1 << 14,
	TYPE_ALERT = 21,
	TYPE_HANDSHAKE = 22,
	CLIENT_HELLO = 1,
	ALERT_FATAL = 2,
	ALERT_ACCESS_DENIED = 49, /* RFC 8446, 6.2 */
	DRAIN_MAX = 64,
};

static size_t big_endian(const uint8_t *bytes, int n)
{
	size_t value = 0;

	for (int i = 0; i < n; i++)
		value = value << 8 | bytes[i];
	return value;
}

int first_record_check(const uint8_t *head, size_t have, size_t queued)
{
	size_t record;

	if ((have > 0 && head[0] != TYPE_HANDSHAKE) || (have > 1 && head[1] != 3))
		return -EPROTO;
	if (have < RECORD_HEADER + MESSAGE_HEADER)
		return 0;
	record = big_endian(head + 3, 2);
	if (record > RECORD_MAX || head[RECORD_HEADER] != CLIENT_HELLO ||
	    big_endian(head + RECORD_HEADER + 1, 3) + MESSAGE_HEADER != record)
		return -EPROTO;
	return queued >= RECORD_HEADER + record;
}

int channel_look_first(int tcp, struct err *err)
{
	uint8_t head[RECORD_HEADER + MESSAGE_HEADER];
	ssize_t n = recv(tcp, head, sizeof(head), MSG_PEEK | MSG_DONTWAIT);
	int queued = 0, r;

	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return 0;
	if (n < 0)
		return err_sys(err, "read its first message");
	if (n == 0)
		return err_set(err, -EPIPE, "it ended the connection without a message");
	if (ioctl(tcp, SIOCINQ, &queued) < 0)
		return err_sys(err, "read its first message");
	r = first_record_check(head, (size_t)n, (size_t)queued);
	return r < 0 ? err_set(err, r,
			       "it does not speak TLS 1.3 with a cluster key: its first message is no "
			       "ClientHello")
		     : r;
}

void channel_turn_away(int tcp)
{
	static const uint8_t alert[] = {TYPE_ALERT, 3, 3, 0, 2, ALERT_FATAL, ALERT_ACCESS_DENIED};
	char bytes[4096];

	if (send(tcp, alert, sizeof(alert), MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
		return; /* it has ended */
	shutdown(tcp, SHUT_WR);
	/* A close with unread bytes sends a reset, which can overtake the alert. */
	for (int i = 0; i < DRAIN_MAX; i++)
		if (recv(tcp, bytes, sizeof(bytes), MSG_DONTWAIT) <= 0)
			return;
}
