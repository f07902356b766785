/*
 * card_scenes.h - pictures of playing cards that lie on patterns, and where each lies: made up as they are
 * asked for, from cut-outs of cards.
 *
 * A folder has the cards (STYLE_SUIT_RANK.png, the suits c, d, h, s, the ranks 2 to 10, j, q, k, a, and the
 * jokers STYLE_jk_b.png and STYLE_jk_r.png) in cards/ and patterns in patterns/; or it is that of the Debian
 * package openclipart-png, where these are in recreation/games/cards/ and special/patterns/. What else
 * is among the cards, such as their backs, is laid down now and then without being looked for.
 *
 * Scenes for validation have the cards of one style, and patterns, that those for training never show.
 */
#ifndef EX_CARD_SCENES_H
#define EX_CARD_SCENES_H

#include "source.h"

enum {
    EX_CARDS_MOST = 3,  /* that are looked for in one scene */
    EX_CARD_NUMBERS = 5 /* of a box: class (-1: none), centre x and y, width, height */
};

/* What a card is taken for; cards that are none of the classes are left out. */
typedef enum ex_card_classes {
    EX_CARDS_BY_SUIT = 0, /* clubs, diamonds, hearts, spades */
    EX_CARDS_BY_RANK      /* ace, king, queen, jack, ten, nine, joker */
} ex_card_classes;

typedef struct ex_card_scenes_options {
    const char *folder;
    ex_card_classes classes;
    int side;         /* of a picture, in pixels */
    size_t scenes[2]; /* in an epoch, by ex_split */
    uint64_t seed;
} ex_card_scenes_options;

typedef struct ex_card_scenes ex_card_scenes;

/*
 * Reads the cut-outs, some 30 KB each, and keeps them.
 * @param out  new reference: free with ex_card_scenes_free; NULL on failure
 * @return EX_OK; EX_EINPUT with a line that names folder or file; EX_ENOMEM
 */
ex_status ex_card_scenes_open(const ex_card_scenes_options *options, ex_card_scenes **out,
                              ex_error *error);

/* NULL is a no-op. */
void ex_card_scenes_free(ex_card_scenes *scenes);

size_t ex_card_scenes_class_count(const ex_card_scenes *scenes);
const char *ex_card_scenes_class_name(const ex_card_scenes *scenes, size_t label);

/* The style that is kept for validation. */
const char *ex_card_scenes_unseen(const ex_card_scenes *scenes);

/* Cut-outs that a split draws from: cards that are looked for, and patterns. */
size_t ex_card_scenes_cards(const ex_card_scenes *scenes, ex_split split);
size_t ex_card_scenes_patterns(const ex_card_scenes *scenes, ex_split split);

/*
 * Pictures [3, side, side], normalised as ImageNet's, and boxes [EX_CARDS_MOST, EX_CARD_NUMBERS] as shares
 * of the picture, those that are there first.
 * @param scenes  borrowed as long as the source is used
 */
ex_source ex_card_scenes_source(const ex_card_scenes *scenes);

/*
 * Sizes that boxes of cards have, by k-means over those of many training scenes, from the smallest to the
 * largest area.
 * @param anchors  count pairs of width and height, as shares of the picture
 */
void ex_card_scenes_anchors(const ex_card_scenes *scenes, size_t count, float (*anchors)[2]);

#endif
