/*
 * A channel whose records its user makes and reads itself.
 *
 * The process that speaks TLS (channel.h) copies every byte twice more than it must. Where that counts, for
 * the pages of a migration, it hands the connection over once hands are shaken and nothing is under way: the
 * TCP socket, the traffic secrets of both directions and how many records each has had. What is on the wire
 * stays TLS 1.3 (RFC 8446, section 5), and the other side need not know; it may still have its process.
 *
 * One thread at a time.
 */
#ifndef CHANNEL_RECORDS_H
#define CHANNEL_RECORDS_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/err.h"

enum records_way { RECORDS_READ, RECORDS_WRITE, RECORDS_WAYS };
#define RECORDS_SECRET 32 /* bytes, of TLS_AES_128_GCM_SHA256 */

/* Where the connection stands: application_traffic_secret_N, and the records under it so far. */
struct records_traffic {
	uint8_t secret[RECORDS_WAYS][RECORDS_SECRET];
	uint64_t count[RECORDS_WAYS];
};

struct records;

/* Asks for the connection of the channel `sock` (channel_open(), channel_take()) to another host; blocking, a
 * moment. Takes `sock` when it returns 0. -EAGAIN: something was under way, and the channel goes on as it
 * was; so it does after every other error but -EPIPE, when it has ended. The caller has seen to it that the
 * other side is silent. */
must_check int records_take_over(int sock, struct records **out, struct err *err);
/* On a connection `tcp` (taken, blocking from now on). NULL: no memory; `tcp` is closed. */
struct records *records_new(int tcp, const struct records_traffic *traffic);
/* With a close_notify, if the connection takes one at once. */
void records_close(struct records *records);
/* The connection, for shutdown() by another thread and for time limits. */
int records_socket(const struct records *records);

/* Encrypts, and sends what fills the buffer. 0 or -errno. */
must_check int records_put(struct records *records, const void *data, size_t len);
/* Sends the rest. */
must_check int records_flush(struct records *records);
/* Waits for bytes, at most `len`. How many, 0 when the other side has closed, or -errno: -EBADMSG for a
 * record that is not the other side's, -EPIPE for an end without a close_notify. */
must_check ssize_t records_read(struct records *records, void *to, size_t len);

/* ---- between the process that speaks TLS and who asks it (pump.c) ---- */
struct records_answer {
	uint32_t given; /* with the TCP socket beside it; else nothing has changed */
	struct records_traffic traffic;
};
/* recv() with these flags, and the descriptor that came with the bytes: *fd, the caller's, -1 for none. */
ssize_t records_recv_descriptor(int sock, void *to, size_t len, int flags, int *fd);

#endif
