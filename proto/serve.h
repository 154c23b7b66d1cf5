/*
 * The serving side of proto/frame.h for programs with an event loop: what it says of a connection it logs,
 * and nothing here blocks.
 */
#ifndef PROTO_SERVE_H
#define PROTO_SERVE_H

#include <stdbool.h>

#include "proto/frame.h"

/* frame_listen(), not blocking. */
must_check int serve_listen(const char *path, struct err *err);
/* Accepts a connection: a non-blocking descriptor, the caller's. -EAGAIN when there is none. */
must_check int serve_accept(int listener, struct err *err);

/* Answers a frame, or begins to; the frame is freed afterwards. False: the connection is to end. */
typedef bool (*serve_frame_fn)(void *arg, struct frame *frame);
/* The connection is readable: takes what has come, and calls `serve` when that makes a frame whole. False
 * when the connection is to end: it has ended, or is of no use, or `serve` says so. */
must_check bool serve_readable(struct frame_reader *reader, int sock, serve_frame_fn serve, void *arg);

#endif
