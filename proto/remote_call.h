/*
 * System calls about another process that its host's pbeamd can make in the caller's stead: numbers and small
 * structures in, a number and a small structure out. One table for both sides.
 */
#ifndef PROTO_REMOTE_CALL_H
#define PROTO_REMOTE_CALL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define REMOTE_CALL_BYTES 4096u /* the largest structure */

enum remote_call_arg {
	REMOTE_CALL_NONE,
	REMOTE_CALL_NUMBER,
	REMOTE_CALL_WHICH, /* must be the kind of number that names a process */
	REMOTE_CALL_PROCESS,
	REMOTE_CALL_IN,	 /* points to what the call reads */
	REMOTE_CALL_OUT, /* points to what the call writes */
};
struct remote_call_row {
	int number;
	uint8_t args[6];  /* enum remote_call_arg */
	uint16_t in, out; /* bytes, 0: as argument `size` says */
	uint8_t size;
	bool gives_process; /* what it returns is the number of a process */
};

/* NULL: it cannot be made elsewhere. */
const struct remote_call_row *remote_call_find(int64_t number);
/* The argument of that kind, or -1. */
int remote_call_arg(const struct remote_call_row *row, enum remote_call_arg kind);
/* Bytes that its IN (OUT) argument points to, more than REMOTE_CALL_BYTES cut off. */
size_t remote_call_bytes(const struct remote_call_row *row, enum remote_call_arg kind, const int64_t args[6]);

#endif
