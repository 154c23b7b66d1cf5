/*
 * The process that carries all links of a job on this host: one for each keeper, started when the job first
 * spreads to other hosts.
 *
 * It runs one event loop. One connection to each other host carries the links of all processes whose stubs
 * are there (link_peer.h, link_guest.c), and the console if the job's home is there (remote_console_guest.c).
 * Hosts whose processes have their stubs here connect in turn (link_stub.c, remote_console_home.c). What
 * blocks runs in a thread of its own (link_work.h).
 *
 * The process outlives its keeper until the last state change of each process here is confirmed and the last
 * output has reached home. The keeper starts another one if it is killed, and repeats what it must know.
 */
#ifndef SCIP_JOB_LINK_PROCESS_H
#define SCIP_JOB_LINK_PROCESS_H

#include "channel/channel.h"
#include "proto/cluster.pb-c.h"
#include "proto/keeper.pb-c.h"
#include "proto/stream.h"
#include "scip/job/job.h"

struct console_guest;
struct console_home;
struct link_guest;
struct link_incoming;
struct link_peer;
struct link_process;
struct link_stub;

/* What a connection to another host reports. */
struct link_peer_calls {
	void (*connected)(struct link_process *process, struct link_peer *peer);
	/* It cannot be made (r: -errno), or is lost (r: 0). */
	void (*unconnected)(struct link_process *process, const struct link_peer *peer, int r);
	void (*link_frame)(struct link_process *process, uint32_t type, const Pbeam__StubLink *frame);
	void (*console_frame)(struct link_process *process, uint32_t type, const Pbeam__RemoteConsole *frame);
};

struct link_process {
	const struct link_peer_calls *calls;
	struct job *job; /* as it was when this process was started; `incarnation` follows the keeper's */
	struct event_base *base;
	struct stream keeper; /* fd -1: it has ended */
	uint8_t cookie[CHANNEL_COOKIE_SIZE];
	uint64_t last_id; /* of guests, stubs and connections: work that was started for one finds it by this
			   */
	int expecting;	  /* the socket that connections come over, -1 none */
	bool expects, terminating;
	struct event *expected;
	struct link_peer *peers;
	struct link_guest *guests;
	struct link_incoming *incoming;
	struct link_stub *stubs;
	struct console_guest *console; /* NULL: none leads home from here */
	bool console_open;	       /* it has something to carry, or will have */
	struct console_home *homes;    /* the consoles that are served here */
	struct event *home_written;
};

/* ---- link_calls.c ---- */
extern const struct link_peer_calls link_process_calls;

/* ---- link_main.c, link_process.c ---- */
/* In a child of the keeper, with its end of their socket. */
_Noreturn void link_process_main(struct job *job, int keeper);

/* Ends the process if there is nothing left to do for it: the keeper has ended, and all is confirmed. */
void link_process_check_end(const struct link_process *process);
/* To the keeper; no effect if it has ended. */
void link_process_tell(struct link_process *process, enum _Pbeam__LinkNewsType type,
		       const Pbeam__LinkNews *news);
/* A timer that is not running. The process ends where there is no memory for it. */
struct event *link_process_timer(const struct link_process *process, void (*expired)(int, short, void *),
				 void *arg);
void link_process_timer_start(struct event *timer, unsigned ms);

/* ---- processes here: link_guest.c ---- */
/* News from the keeper about one. */
void link_guest_news(struct link_process *process, uint32_t type, const Pbeam__LinkNews *news);
/* A frame of a link came from the stub's host. */
void link_guest_frame(struct link_process *process, uint32_t type, const Pbeam__StubLink *frame);
/* See struct link_peer_calls. */
void link_guest_connected(struct link_process *process, struct link_peer *peer);
void link_guest_unconnected(struct link_process *process, const struct link_peer *peer, int r);
/* The keeper has ended, and with it all processes here. */
void link_guest_orphan(struct link_process *process);

/* ---- stubs here: link_stub.c ---- */
/* From now on other hosts connect. */
void link_stub_expect(struct link_process *process);
void link_stub_news(struct link_process *process, uint32_t type, const Pbeam__LinkNews *news);
/* The keeper has ended, and with it all stubs here. */
void link_stub_orphan(struct link_process *process);
/* Sends a message of the console over a connection. */
void link_incoming_send(struct link_incoming *incoming, uint32_t type, const Pbeam__RemoteConsole *message);

/* ---- the console: remote_console_guest.c, remote_console_home.c ---- */
void console_guest_start(struct link_process *process);
void console_guest_orphan(struct link_process *process);
void console_guest_frame(struct link_process *process, uint32_t type, const Pbeam__RemoteConsole *message);
void console_guest_connected(struct link_process *process, struct link_peer *peer);
void console_guest_unconnected(struct link_process *process, const struct link_peer *peer);

/* Prepares to serve consoles. */
void console_home_prepare(struct link_process *process);
void console_home_frame(struct link_process *process, struct link_incoming *incoming, uint32_t type,
			const Pbeam__RemoteConsole *message);
/* The connection is lost. */
void console_home_lost(struct link_process *process, const struct link_incoming *incoming);
/* Ends all of them, and this process when no byte is both written and not counted. */
void console_home_terminate(struct link_process *process);

#endif
