/*
 * Events of a job, from its keeper to its console: KeeperEvent (proto/keeper.proto), one in each datagram of
 * a seqpacket socket. Nothing is sent the other way but end of file: the console has gone, the job continues.
 */
#ifndef SCIP_JOB_EVENT_H
#define SCIP_JOB_EVENT_H

#include "base/err.h"
#include "proto/keeper.pb-c.h"

/* Sends without waiting. 0 or -errno. */
must_check int event_send(int sock, const Pbeam__KeeperEvent *event);
/* As event_send(), by write(2): into a pipe in packet mode (O_DIRECT, pipe(2)). */
must_check int event_write(int pipe, const Pbeam__KeeperEvent *event);
/* As event_receive(), from such a pipe. */
must_check int event_read(int pipe, Pbeam__KeeperEvent **out);
/* Receives one event, with recv(2)'s `flags`. Returns 1 with *out, which the caller frees with
 * message_free(), 0 at end of file, or -errno: -EPROTO for a malformed one. */
must_check int event_receive(int sock, int flags, Pbeam__KeeperEvent **out);

#endif
