/*
 * pbeamd: one event loop, one socket, connections with one request at a time.
 *
 * It keeps nothing that would be lost with it: jobs and processes are in the name table, checkpoints in the
 * state directory, what happens to a job happens in its keeper. So it may be killed and started again at any
 * moment.
 *
 * The loop never blocks. A request is answered at once (kill), or passed on to the job's keeper and answered
 * when the keeper answers (forward.c), or handed to a child that may block and that answers on the connection
 * itself (worker.c).
 */
#ifndef PBEAMD_SERVER_H
#define PBEAMD_SERVER_H

#include <event2/event.h>
#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/err.h"
#include "namespace/names.h"
#include "pbeamd/cluster/stream.h"
#include "proto/daemon.pb-c.h"
#include "proto/frame.h"

struct server_options {
	bool background;		       /* leaves when idle */
	unsigned idle_s;		       /* for how long nothing must have been there */
	int ready_fd;			       /* told by a byte that we serve; -1 none */
	const struct cluster_options *cluster; /* NULL: this host alone */
};

enum connection_phase {
	CONNECTION_NEW,	    /* only a Hello is taken */
	CONNECTION_GREETED, /* requests */
	CONNECTION_BUSY,    /* one is being answered: nothing is taken */
	CONNECTION_PHASES,
};

struct forward;
struct pass;
struct cluster;
struct cluster_options;

struct connection {
	struct connection *next;
	struct server *server;
	struct stream stream;
	enum connection_phase phase;
	struct forward *forward; /* the request that a keeper is answering */
	bool closing;		 /* ends when all is written */
	bool passed_on;		 /* by another host: it is not passed on again */
	struct pass *pass;	 /* the request that another host carries out */
	bool expecting;		 /* channels with this cookie */
	uint8_t cookie[16];
};

struct server {
	const struct server_options *options;
	struct event_base *base;
	struct names *names;
	int lock, listener;
	char path[PATH_MAX]; /* of the socket */
	ino_t inode;	     /* of the socket, to notice that it is ours no more */
	struct event *accepting, *children, *idle, *stop[2];
	struct connection *connections;
	struct cluster *cluster; /* NULL: this host alone */
	struct worker *workers;
	uint64_t active_ns; /* when something was last there */
};

/* Runs until it is told to end or has been idle for long enough. Returns 0, or -errno when it could not
 * serve; -EADDRINUSE when another one does. */
must_check int server_run(const struct server_options *options, struct err *err);

/* ---- connection.c ---- */
/* NULL when it cannot be; `fd` is taken in any case. */
struct connection *connection_open(struct server *server, int fd);
/* Closes it at once. */
void connection_close(struct connection *connection);
/* Queues a frame; descriptors are duplicated. */
void connection_send(struct connection *connection, uint32_t type, const ProtobufCMessage *message,
		     const int *fds, int nfds);
/* Queues a frame as it came, with its descriptors, which are taken. */
void connection_relay(struct connection *connection, struct frame *frame);
/* The final answers: the connection takes requests again. */
void connection_reply(struct connection *connection, const ProtobufCMessage *message);
void connection_refuse(struct connection *connection, const struct err *err);

/* ---- handlers.c ---- */
/* Answers, or begins to answer. False: the frame is none that may come now, the connection ends. */
bool handlers_dispatch(struct connection *connection, const struct frame *frame);

/* ---- forward.c ---- */
struct forward_request {
	struct rpid keeper;
	uint32_t type;
	const ProtobufCMessage *message;
	char who[128]; /* "vpid 7 (cat)": put in front of a refusal */
	/* Called instead of the refusal when the keeper, or the job, is gone; false: refuse after all. May be
	 * NULL. */
	bool (*gone)(struct connection *connection, void *arg);
	void (*release)(void *arg);
	void *arg; /* released with the forward */
};
must_check int forward_begin(struct connection *connection, const struct forward_request *request,
			     struct err *err);
void forward_end(struct forward *forward);

/* ---- worker.c ---- */
/* In the child: answers on `sock`, blocking. */
typedef void (*worker_fn)(struct server *server, int sock, const void *arg);
/* The connection goes to a child that runs `work`. */
must_check int worker_start(struct connection *connection, worker_fn work, const void *arg, struct err *err);
/* As fork() for a child that goes on without the loop: signals as at the start, none of our sockets open but
 * those that the caller has made. `keep` (NULL: none) is a connection that stays open. */
pid_t worker_fork(struct server *server, const struct connection *keep);
/* A child has ended. */
void worker_ended(struct server *server, pid_t pid);
/* For workers. */
void worker_refuse(int sock, const struct err *err);

/* ---- target.c ---- */
struct target {
	bool live; /* a process of the name space has it */
	struct name_process process;
	struct name_job job; /* of a live one */
	char store[64];	     /* JOB of its checkpoints (image/store.h) */
	char who[128];	     /* "vpid 7 (cat)" or what the user wrote */
};
/* Finds what the user named. A job that has ended is found by its checkpoints: `live` is false then. -ESRCH
 * when there is neither. */
must_check int target_find(struct server *server, const Pbeam__Target *wish, struct target *out,
			   struct err *err);
/* As target_find(), but only what is running. */
must_check int target_find_live(struct server *server, const Pbeam__Target *wish, struct target *out,
				struct err *err);
/* What a process is called: comm, "?" when it is gone. */
void target_comm(struct rpid rpid, char comm[32]);
/* What this host is called. */
void target_host(struct server *server, char host[256]);

/* ---- sweep.c ---- */
/* Removes the sockets that killed keepers and scips left. */
void sweep_sockets(void);

/* ---- the requests ---- */
void ps_work(struct server *server, int sock, const void *arg);
void log_work(struct server *server, int sock, const void *arg); /* arg: struct target */
struct revive {
	struct target target;
	char path[PATH_MAX];
	bool force;
};
void revive_work(struct server *server, int sock, const void *arg); /* arg: struct revive */
/* kill(2) and its kin, and other calls, made by a process of another host. */
int handle_signal(struct connection *connection, const ProtobufCMessage *message, struct err *err);
int handle_call(struct connection *connection, const ProtobufCMessage *message, struct err *err);
int handle_members(struct connection *connection, const ProtobufCMessage *message, struct err *err);
int handle_proc(struct connection *connection, const ProtobufCMessage *message, struct err *err);
/* A signal as sigqueue(3) of the process with vpid `from` would send it; for the process, or its thread `tid`
 * if that is not 0; signal 0 asks whether it could be sent. 0 or -errno. */
void signal_info(int signal, int32_t from, siginfo_t *info);
must_check int signal_process(pid_t pid, pid_t tid, int signal, siginfo_t *info);
must_check int kill_target(struct server *server, const struct target *target, int signal, struct err *err);

#endif
