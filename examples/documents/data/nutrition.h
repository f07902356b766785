/*
 * nutrition.h - what the food in a picture weighs and contains, beside its class.
 *
 * No folder of pictures comes with such labels. They are made up here, and only show how a second head is
 * trained: FOLDER/nutrition.json says of each class what 100 g of it contain and what a portion weighs, a
 * portion is larger the more of its picture is drawn on, and what is in it follows from its weight.
 *
 *     {"fruit": {"calories": 55, "protein_g": 0.7, "carb_g": 14, "fat_g": 0.3, "portion_g": 140}, ...}
 */
#ifndef EX_NUTRITION_H
#define EX_NUTRITION_H

#include "pictures.h"

/* calories, protein_g, carb_g, fat_g, mass_g */
enum { EX_NUTRIENTS = 5 };
extern const char *const ex_nutrient_names[EX_NUTRIENTS];

typedef struct ex_nutrition ex_nutrition;

/*
 * Reads the table of the data set's folder.
 * @param pictures  borrowed until ex_nutrition_free
 * @param out       new reference: free with ex_nutrition_free
 * @return MT_OK; MT_EINVAL (names the file, and the class and the number that it lacks); MT_ENOMEM
 */
MT_NODISCARD mt_status ex_nutrition_open(const ex_pictures *pictures, ex_nutrition **out);

/* NULL is a no-op. */
void ex_nutrition_free(ex_nutrition *nutrition);

/*
 * The pictures and labels of ex_pictures_source, and a third tensor [EX_NUTRIENTS].
 * @param nutrition  borrowed as long as the source is used
 */
ex_source ex_nutrition_source(const ex_nutrition *nutrition);

/*
 * Mean absolute error on the validation pictures (on those of training, where there are none) of who
 * always guesses the mean of the training pictures: what a network has to beat.
 * @return MT_OK; MT_EINVAL for a picture that can no longer be read; MT_ENOMEM
 */
MT_NODISCARD mt_status ex_nutrition_guess(const ex_nutrition *nutrition, double out[EX_NUTRIENTS]);

#endif
