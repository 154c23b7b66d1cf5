/* Singly linked lists: each item has a member `next`. */
#ifndef BASE_LIST_H
#define BASE_LIST_H

/* Takes `item` out of the list, if it is there. `head` points to the pointer to the first item. */
#define list_remove(head, item)                                                                              \
	do {                                                                                                 \
		__typeof__(item) *list_at = (head);                                                          \
                                                                                                             \
		while (*list_at && *list_at != (item))                                                       \
			list_at = &(*list_at)->next;                                                         \
		if (*list_at)                                                                                \
			*list_at = (item)->next;                                                             \
	} while (0)

#endif
