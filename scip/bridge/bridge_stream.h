/* Inside of a bridge: its streams, channels and loop. bridge.h explains them. */
#ifndef SCIP_BRIDGE_STREAM_H
#define SCIP_BRIDGE_STREAM_H

#include <sys/socket.h>

#include "proto/frame.h"
#include "scip/bridge/bridge.h"

enum {
	BRIDGE_PIECE = 64 << 10,   /* at most so much in a record of a stream */
	BRIDGE_MESSAGE = 16 << 20, /* and in one message */
	BRIDGE_OUT_MAX = 64 << 10, /* bytes of attachments and acknowledgements that wait for a channel */
};

/* What epoll's data points to. */
enum watch_kind { WATCH_LINE, WATCH_CHANNEL, WATCH_CONTROL, WATCH_LISTENER, WATCH_EXPECTING };
struct watch {
	enum watch_kind kind;
	void *owner;
};

/* A record of ours, as the frame that goes out. */
struct record {
	struct record *next;
	uint64_t number;
	size_t weight; /* what it counts in the window */
	size_t len;
	uint8_t *frame;
};
/* A record of the other side's that is not delivered yet. */
struct arrival {
	struct arrival *next;
	Pbeam__BridgeRecord *record;
};

/* Of a UDP port's float: who has sent to the port at its old place is this socket to the program. */
struct stand_in {
	struct stand_in *next;
	int fd;
	uint64_t used;			    /* when it was, in the order of all */
	union name_sockaddr source, called; /* its real address, and what the program is told */
	bool named;
	bool passing; /* what came for it is answered directly */
};

struct bridge_stream {
	struct bridge_stream *next;
	struct bridge *bridge;
	struct watch watch;
	struct channel *channel; /* NULL: none at the moment */
	Pbeam__BridgeStream *about;
	uint64_t id, ino, skip;
	int fd;
	bool anchor;
	bool socket;		 /* fd is one: else a pipe */
	bool reads, writes;	 /* directions of fd that are open */
	bool readable, writable; /* as far as we know */
	bool closing;		 /* CLOSE or RESET was sent: nothing of ours follows */
	bool over;		 /* nothing more to do but to have the log acknowledged */
	bool held;		 /* stands still */
	bool moved;		 /* is another bridge's now: what still comes is not ours to acknowledge */
	bool taken;		 /* and its state was given away */
	const struct control *holder;	/* for this coordinator */
	bool fresh;			/* the program has not accepted it yet, as far as we know */
	bool ended;			/* we have sent END */
	bool attaching;			/* the anchor has not answered yet: nothing is sent */
	uint32_t generation;		/* how often the program has moved with it */
	unsigned turn;			/* of bridge->turn, when it last sent */
	bool named;			/* the name table has the address of the caller */
	const struct bridge_stream *of; /* its listener */
	uint64_t opened;		/* the anchor's: number of the listener's record that announces it */
	uint64_t lost_ns;		/* since when there is no channel */
	uint64_t made_ns;
	uint64_t called_ns; /* a listener's: time of the last call */
	struct stand_in *stand_ins;
	struct stream_terminal *terminal; /* terminal.c; NULL: none, or not begun */
	struct pty_bytes typed;		  /* an anchor's terminal: dumped with the program */
	struct control *waiter;		  /* waits until nothing is under way any more */
	uint64_t stand_ins_used;

	struct record *head, *tail, *unsent;
	uint64_t next_number;
	size_t weight;

	struct arrival *first, *last;
	uint64_t expected;  /* the number that comes next */
	uint64_t delivered; /* records below it are */
	uint64_t acked;	    /* and the other side was told of these */
	uint64_t partial;   /* bytes of `first` that are written already */
	size_t waiting;	    /* bytes in `first` and after it */
};

/* A channel to another bridge. */
struct channel {
	struct channel *next;
	struct bridge *bridge;
	struct watch watch;
	int sock;
	uint8_t cookie[BRIDGE_COOKIE]; /* of the anchor, where we are the float */
	char host[64];
	bool ours; /* we made it and make it again */
	bool writable;
	uint64_t retry_ns, lost_ns;
	struct frame_reader reader;
	uint8_t *out; /* the frame that is going out */
	size_t out_len, out_done;
	uint8_t *control; /* frames that go before records */
	size_t control_len;
};

/* A coordinator. */
struct control {
	struct control *next;
	struct bridge *bridge;
	struct watch watch;
	int sock;
	bool dead;
	struct frame_reader reader;
};

struct bridge {
	uint8_t cookie[BRIDGE_COOKIE];
	char path[4096];
	struct names *names; /* or NULL */
	int epoll, listener, expecting;
	struct watch listener_watch, expecting_watch;
	struct bridge_stream *streams;
	struct channel *channels;
	struct control *controls;
	uint64_t next_id;
	unsigned turn;
	bool started; /* by a coordinator, whose copy of it this is */
	bool changed; /* the text beside the socket has to be written */
};

/* ---- bridge_stream.c: logs ---- */
struct bridge_stream *bridge_stream_new(struct bridge *bridge, const Pbeam__BridgeStream *about, int fd,
					bool anchor);
void bridge_stream_free_log(struct bridge_stream *stream);
/* Each anchor gives numbers of its own: a float's stream is one of the channel. */
struct bridge_stream *bridge_stream_find(struct bridge *bridge, const struct channel *channel, uint64_t id);
/* Appends to the log. -ENOMEM. */
must_check int bridge_stream_append(struct bridge_stream *stream, Pbeam__BridgeRecord__Kind kind,
				    const void *data, size_t len, const struct sockaddr *from,
				    socklen_t from_len, const Pbeam__BridgeStream *opened);
/* The other side has delivered all below `number`. */
void bridge_stream_acked(struct bridge_stream *stream, uint64_t number);
/* Sends again from `number` on. */
void bridge_stream_rewind(struct bridge_stream *stream, uint64_t number);
/* Takes a record that has come. 0, or -EPROTO for one that should not have. */
must_check int bridge_stream_arrived(struct bridge_stream *stream, Pbeam__BridgeRecord *record);
void bridge_stream_drop_arrivals(struct bridge_stream *stream);
/* The record in a frame of a log that came; NULL if it is none. */
Pbeam__BridgeRecord *bridge_stream_record(const ProtobufCBinaryData *frame);
/* Appends a frame of the log that came with the program. */
must_check int bridge_stream_append_frame(struct bridge_stream *stream, const uint8_t *frame, size_t len,
					  uint64_t number);
/* It is not of this bridge any more: its end is not sent. */
void bridge_stream_forget(struct bridge_stream *stream);
/* Ends it at once on this side. */
void bridge_stream_reset(struct bridge_stream *stream);
/* The inode of a socket of ours. */
uint64_t bridge_stream_socket_ino(int fd);
/* Nothing is left to do for it. */
bool bridge_stream_finished(const struct bridge_stream *stream);
/* Its state for elsewhere; NULL without memory. */
Pbeam__BridgeStream *bridge_stream_describe(const struct bridge_stream *stream, bool whole);

/* ---- pump.c: between the descriptor and the logs ---- */
/* As much as goes, both ways. */
void bridge_stream_pump(struct bridge_stream *stream);
/* All that is in the descriptor, whatever the window says: for a stream that moves on. */
void bridge_stream_drain(struct bridge_stream *stream);
/* What can only be asked: whether the program has closed its end. Once in a while. */
void bridge_stream_look(struct bridge_stream *stream);
/* True if bridge_stream_look() is of use. */
bool bridge_stream_wants_look(const struct bridge_stream *stream);

/* ---- bridge_accept.c: listeners ---- */
/* The anchor's: connections from outside become streams. */
void listener_accept(struct bridge_stream *stream);
/* The float's: a stream that the anchor has opened is connected to the program. False: not yet, the program
 * has too many waiting. */
bool listener_connect(struct bridge_stream *listener, const Pbeam__BridgeStream *opened);
/* The name table is to know no more of it. */
void listener_forget(struct bridge_stream *stream);
/* The program has this fresh one now. */
bool listener_accepted(struct bridge_stream *stream);

/* ---- bridge_port.c: UDP ports with many callers, the float's side ---- */
bool bridge_stream_is_port(const struct bridge_stream *stream);
/* To the program, from the stand-in of `from`. As sendmsg(), with -errno. */
ssize_t port_send(struct bridge_stream *stream, const void *data, size_t len,
		  const ProtobufCBinaryData *from);
/* What the program has sent to any of them: the bytes, or -EAGAIN. */
ssize_t port_take(struct bridge_stream *stream, void *data, size_t room, struct sockaddr_storage *to,
		  socklen_t *to_len);
must_check int port_watch(struct bridge_stream *stream);
bool port_has(const struct bridge_stream *stream, int fd);
void port_free(struct bridge_stream *stream);

/* ---- terminal.c: pseudo-terminals ---- */
bool bridge_stream_is_terminal(const struct bridge_stream *stream);
/* The bridge runs. -ENOMEM. */
must_check int terminal_begin(struct bridge_stream *stream);
/* Of an anchor, before: what was typed since the program was dumped is on its way to it. -errno. */
must_check int terminal_depart(struct bridge_stream *stream);
/* The stream is about to end: the settings are the program's again. */
void terminal_end(struct bridge_stream *stream);
/* Tells the other side what has changed. True if something had. */
bool terminal_look(struct bridge_stream *stream);
/* What the other side has told. */
void terminal_apply(struct bridge_stream *stream, const Pbeam__BridgeRecord *record);
/* `result` of a read, 0 or -errno, is the terminal's end. */
bool terminal_ended(struct bridge_stream *stream, ssize_t result);

/* ---- channel.c ---- */
struct channel *channel_add(struct bridge *bridge, int sock);
void channel_free(struct channel *channel);
/* The float's channel to the anchor of this stream, made or tried again later. */
void channel_for(struct bridge_stream *stream);
void channel_retry(struct channel *channel);
void channel_attach(struct bridge_stream *stream);
void channel_acknowledge(struct bridge_stream *stream);
void channel_output(struct channel *channel);
void channel_input(struct channel *channel);

/* ---- control.c ---- */
void control_accept(struct bridge *bridge);
void control_input(struct control *control);
void control_free(struct control *control);
/* Replies to the waiter of the stream if it is time. */
void control_settled(struct bridge_stream *stream);
/* RUNTIME/bridge/COOKIE; `buf` of 4096 bytes. */
must_check int control_path(const uint8_t *cookie, char *buf, struct err *err);
void control_describe(struct bridge *bridge);

/* ---- bridge.c ---- */
/* For a child: only `back` and the log stay open. */
void bridge_close_all_but(int back);
must_check int bridge_watch(struct bridge *bridge, int fd, struct watch *watch, uint32_t events);

#endif
