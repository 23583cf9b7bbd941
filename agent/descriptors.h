/** @file descriptors.h
 * Hands file descriptors of this process to other processes of the same user, who have been told a ticket:
 * a socket without a name in the file system, and a thread that answers. Both begin with the first offer.
 */
#ifndef RP_AGENT_DESCRIPTORS_H
#define RP_AGENT_DESCRIPTORS_H

#include <stdint.h>

#include "recvpool/status.h"

/** Who offers, and which; both cannot be guessed. Bytes of it may be sent anywhere. */
struct rp_ticket {
  uint64_t process; /**< names the socket */
  uint64_t key;
};

/** Offers `fd`, which the offer owns from now on, until it is withdrawn. RP_ERROR_NO_MEMORY,
 * RP_ERROR_UNAVAILABLE (no socket, no thread, no random numbers); then `fd` is still the caller's.
 * Thread-safe. */
rp_status rp_descriptor_offer(int fd, struct rp_ticket *ticket);
/** Takes an offer back and closes its descriptor; who has fetched it keeps it. */
void rp_descriptor_withdraw(const struct rp_ticket *ticket);
/** A copy of the descriptor that the ticket stands for, closed on exec; -1: whoever offered it is gone, is of
 * another user, or does not answer within two seconds. */
int rp_descriptor_fetch(const struct rp_ticket *ticket);
/** Whether the ticket is of this process. */
int rp_descriptor_is_own(const struct rp_ticket *ticket);

#endif
