// The codebooks of GGUF's IQ types.
//
// Points are numbered in ascending order, where a point is read as a number whose lowest digit is
// the level of its first element. So all that is written here is which of the possible points
// belong to a codebook: a bit for each, the lowest of a byte first, in base 85.
#include "pack/blocks/codebooks.h"

#include <string_view>

namespace octavo {
namespace {

constexpr std::string_view kDigits =
    "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~";

// Five digits are four bytes, the first one the highest; what is missing at the end is filled up
// with the last digit.
std::vector<uint8_t> decoded(std::string_view text) {
  std::vector<uint8_t> bytes;
  for (size_t at = 0; at < text.size(); at += 5) {
    uint64_t word = 0;
    for (size_t i = at; i < at + 5; i++) {
      word = word * 85 + (i < text.size() ? kDigits.find(text[i]) : kDigits.size() - 1);
    }
    const size_t digits = text.size() - at < 5 ? text.size() - at : 5;
    for (size_t i = 0; i + 1 < digits; i++) {
      bytes.push_back(static_cast<uint8_t>(word >> (24 - 8 * i)));
    }
  }
  return bytes;
}

Codebook codebook(int levels, int elements, std::string_view members) {
  Codebook points;
  const std::vector<uint8_t> bytes = decoded(members);
  for (size_t number = 0; number < bytes.size() * 8; number++) {
    if (!(bytes[number / 8] >> (number % 8) & 1)) continue;
    Point point{};
    size_t rest = number;
    for (int i = 0; i < elements; i++, rest /= levels) {
      point[i] = static_cast<uint8_t>(rest % levels);
    }
    points.push_back(point);
  }
  return points;
}

constexpr std::string_view kIq1 =
    "RV5UKpaMcs2t_fdh9HWf8VD*N6opU}f*?diB^3pr0)ilj7yt-@paUwPh`Xu^kg5v+A^-}ijDnyDKv4)qA&7ub6hcu5iZBS"
    "6pa_5}2t^?jg&;^mRR~1^EW)55iY5RmB&e#Q2;#2@2q-83paMcDswg0+fFKH+2)VkbAj+<ZqOPhseCz7EyMhk5BD%`c4w3"
    ">Q03sl$in<Dd0tf&qO5mb9A|NZG0D(Y(s){HGA^{YIP!)n82}L1Pg`fxmBd9tcgn}ScLQx2!APALE6ap#;xTu1FphyBB2!"
    "f($q5>$ZDhP!j2!b#OML+;WAryt6076j!MFA;-0E&Vt2%#_(1yB@%C<sL%6onuH0wAg?03Z^vimoWAx}mD5Z~%e|2m&Y~0"
    ")zm907!tK>aZ%R!XS&fBI??wi;HfklCUbOa*K*Y3@RW<gg_{YDhR3|$jqW5qOY2u=%@k!0stzghyWmfpo^lSD7v74f-(xa"
    "zPP&n>!P45q6mr#DC(jBp)vvt`lRaK?<=S-jlO>C`uBgo=6$-}Y5OPtzb5(;>EVhZ5URcogsKR#s0)Iw|GFgUgMb8LENJq"
    "m3ZyFl0xAdy;;Iq=0)i?ErXb0JiI9RQ0HOelfD-_M2nYadimIx+0;ax-pvnS(YnLw2vgr_l5H70TC>7DA1ON(x0E&Vj2mz"
    "rWf~q;XA~J-a34j;?ilSlyffPhh07W6Jf>0DfQ3$FaD5{4F5-JEqAru9m2trW^MFAiJpg^J`0Ehqxq6lh=Zn&zdfB+y0g5"
    "t;`AqYfJ6hcu6iXat*P!xs=2&yV7fB*_YQ3ypLr~ptDLQx3fAc%qr7=kJYs-miju!{l;DykqTf`F<DC<rJ3sfYq1puP(zx"
    "Cn~6OR}#2x}^B7svuG*Xttm*=70(UC<r2IVt^nD0;;Mjs_LStprQx}5Fnt6A^?I807W4bg`f&RQ3ypLsRjT_ssae501ypC"
    "6oM!SMIjUg00@GDtnwfL0062AC<?kD>Y@Swf=CG{=@bAFOGQxtMFFS+P!vK@2#6#Ih$sp`2mnO^6a}CHKv4)q0R";

constexpr std::string_view kIq2Xxs =
    "RTUIf5JW*i00b0701yBG00ck)6aYW~00004002-BKtT}z0Tcv4Py|2#5C8xL5C8yB0003106+i$K@<c)6chje1ONa8000C"
    "40000000a;K000000000K1P~AaKmY_000aRL06;(h0RR91000350000001yN~1V8`)1ONa401yBG01yBG06+i`00000000"
    "001pxpA002M$000pH000000000100000KmY&$000yO000310R;d60000G5C8xG002+`0000000000KtTWi0YCr%002M$00"
    "0C4KmY&$0000000000KmY(h00aO400004000000000000000000010000008kJ_K@boD6a)Ye06+i$00cw;06;(h06;(h0"
    "RR9%5C8!H000mG5C8xK5C8xG000000RR9100000000yO01yEH000001ONa401yEL00000000C4000C45JXS_000040RR92"
    "000C4000000RR9100000KmY&$00000002M%000310000000004000000RR9100a;O0000400000002M$00000000C40000"
    "000000K>z>&0003106+i$002M$0000006+i$01yBG000pH000000000002BZK00004000000000000000000000RR91000"
    "0000000000000000000000002Ni000C406+i$00ck)1ONa4000001ONa40000002D+35CA{`00004000040000G000C4Km"
    "Y&%0000$00000000000003100000000000096100000000C55Ci}K0000106+i$002M$0000000031000001OPw)0RR910"
    "000000001000000000000000000000000001yBG000010000000000000000000000aO401yBG1ONa40RR910000000aO4"
    "000000000000aO400000000000000000000000000000000000000C4000001ONa40000000000000000000000";

constexpr std::string_view kIq2Xs =
    "RaI3{RYgG+MFCV*RZvAi5Cs7MR8bH>K?DE+0RT`{ML`u60TcuPP(?ui1px#E002Ni01yQL06+i$Kve}16a)bf06;(m0RRL"
    "506-7`009650RR9101yFGRZ&nyK|loo08~*BKtTWi0Z;%?5dc5{0096108m9i07U^11ONa)K>z>&0000006+i)00031000"
    "001qA>EKmY&)000pH000001ONa400000KmY&$003205I{iy00965P!Iq>5C9MW000mG0096100aO4L_q*R0RR91002M$00"
    "0CK0000G0096200000000m{0R#X50RRvH1ONa40000G009610T2KH002Y*08mv$K~)726a)ZJML_@s0RTh*KtMqOKmh;%0"
    "000$6-5CQ1ON~K0RRO75Ci}K002M$0RaF&5C8xG000yO01yEI0RR911P}lKK>$Di002M$0000000000P(?uy1pxpA002Ni"
    "1ONp900000KmY&$5C8xG002M*0R#j95I_I`0YLx&0000$5C8xG01yBG01yBG1Oz|;KtKQh0003101!X{00000000000000"
    "0KmY(hK>z>&5D)+X08jt`0000000000000mG1ONa40RRC&000000000000aOK0RR9101yBG00000000005C8xG00001000"
    "0000aO40000000aO401yxW002N01pyTV08jt`P!$0H1P}xO0000100aO406+l%K@?N~5CA{`KmY&)0000100000KmY&)00"
    "0000RR9H1ONm8009&L00aa80000000000000C4000mK1P}!Q00aO5009610RRvH00031000000000406+i$L;wH)K@b1{0"
    "000001yBG000yK000000RR910000000004000001ONa400961000005C8xG5C8xG07U@=1ONa4000310000$5C8xGKokK0"
    "5C8xG0RRL5002M$0000$0000000000000000000006+i$1OPw)MF0Q*002M`1ONa4000050000000jU5000310R";

constexpr std::string_view kIq2S =
    "RaI3{RYg@51rb$MQBXxy6a^I&R8bI6RRjPL5fD&SMO9T*6;wr0P*qhFRaF#JQ4l~?1OQPK1W*tFKowOHRaH?C0Rcb-RRly"
    ")5I{fx009&b1rPuL06+j#RZ&qzRTULc6jW7JMO76ARTKbF6hT1*1ppKT08m9$6jfCeR8bH>RTTwQ6a-KZ06-K40TcuP5C8"
    "x`RZ#>~Q4l}@0031K1W*tF5C8xK5Ci}a00aO4002}`6;VM21OX8MR8T=c1qA^V1ON~a08s=1000F5L{$_8RTKnJ5CA|F1p"
    "yQU01*HH00jX61ONm80000H6aY{V002M$02KrP0000001yBG1V8`)00ck*08mv`MO9T56hu)_MO6h=RTNZF5I{i{1W^<OP"
    "yhfxRaI3~RZ&nyK>$@%6jV_VP(c6yRTKnJ5CA{`01y;aQBXxe00aR5R8bH>K>z>&Kmbq>06+i$00000P(@W0RaF#JQ2;<y"
    "6$Mok1W*tFKokW56a)Yi00010RTNZF5I{iy096zOP!Iq>0000K1OO2L0000008~*BKtVtN0RR9{5CA{`0000001yBW0000"
    "0KmY(lMHK~66a+vJ06-N50TcuP5C9MW1OWg90096100B`H1W*tFKmY&$6a)Ye5C9MW1ONm800000000mGP!IqB000mG009"
    "sH06+i$00000000001ONa406;($MG+KK5fDKE07X?4R8asxK>$Dz6#!5W0000008~{GP(?ui1pxq5Q4l~u0003208kJBPy"
    "he`0000GK>+{-0RR91KtKTi0096%00000000C400lq*00Bi+5L8hRKtTWi5flJW5D)+W000yO01yBG0000$R8bH>K>z>&K"
    "mbq>06+i$0000H5C8xG5C9MW002Ni01yEH00000Pyhe`01*HH0000000000002M$01*)oR1g3F000C5000mG00aO401yN~"
    "6aWAKL;(O%5CA{`00001Ko9^B0000000000000001ONa4002M$KmY&$0000100000KmY&)002M%6afGL01yBG0R";

constexpr std::string_view kIq3Xxs =
    "6^aD{1ONai3I!qs0uTTJ6#@l{0D=G@f(0M|0000100;np5P$$Ef&c&n00aO40000W000mG08sz{2mk^A3Iz%kfB^si1p);"
    "C000003IzfI000041pom8Kmb4hA^-pY00961000pHKmY&&AOHXW00000000C40RR911qww11ONa4Dg^=o004*q1%d^D0U!"
    "VX0ucZJ0000H0000W00;m82mpWp0ssII00000000003P1n=AOHXW0tE^H00AHb1pom8Pyhe`3IQMh00aO800ICA0000000"
    "001fB*mlK>!2*03ZMW01yB`000O800008000315P$%n0Ehqp000000000G0004i0RTY&fB*mhAOHXW5C8xG00IyI001BW2"
    "mk;90000000000AO!#c0000000aO40ssI3K>$Di03ZMW01yBK000041ONa400;m800D>q000041ONa6000000000000961"
    "000mG1ONa4000mGPyi4B00062000620Du4h000mG0000%00000000005C8xGAOHXW00aO400008000002mk^A00000r~v>"
    "300aO4002M$0RR9100aO4AOrva0U!Vf00031000620ssI21pp8L0000000001000000000000000";

constexpr std::string_view kIq3S =
    "r&l8gr3wX-7bA%x5C9?sqe&tWqzV8D2qFba5CwoD0f-U=2?78C6aYmCq5wb$Knef?00aO66#zvD01*HH7pnzQ08j!1OA!J"
    "I0tEm;0i+QG2_OLkk_mzl0ssU7C=>t+L=gZ00to^I00IC2005ByPyhe`3Izfn0ssU7t5u2xDg}Tk1&JgQ1Ofm6k^l;U0*C"
    "+-B?1%*1OY$*f&d950ssIc5CQ~%0SEvAg#ZEo03ZSYAOb)E2mt^91gZoolmZ9>Di8_)0RRC+0R#aQ009610uhP<iXZ?82t"
    "ot`00a>L0tFxh5I_J306+i$0ssI23IGKl000005d@J00s#O4gbD;92qFLg3Lydr0e}Pn5DEn%000001pp9$0RR93pa22@0"
    "00C400;mO0003103iSY2m$~A1Q7%Pkpw^xDg*)q000040Rjj?00;m8gaLp65CR|w5&!`NKmY&$00ck)015yA000001ONa4"
    "6aWMO0000004e|q000310RVvj000mG00aOK1Rw+f0T2QJ0RR91001BW2mk~C2><{P00031AOHXW0RR91015yA00000kpKl"
    "i0T2WL1OgBMC;$Ke5<vn100IC21ONae00;m8A_xHh00961000C41ONa41ONa6000000RR9100000";

}  // namespace

const Codebook& iq1_points() {
  static const Codebook points = codebook(3, 8, kIq1);
  return points;
}

const Codebook& iq2_xxs_points() {
  static const Codebook points = codebook(3, 8, kIq2Xxs);
  return points;
}

const Codebook& iq2_xs_points() {
  static const Codebook points = codebook(3, 8, kIq2Xs);
  return points;
}

const Codebook& iq2_s_points() {
  static const Codebook points = codebook(3, 8, kIq2S);
  return points;
}

const Codebook& iq3_xxs_points() {
  static const Codebook points = codebook(8, 4, kIq3Xxs);
  return points;
}

const Codebook& iq3_s_points() {
  static const Codebook points = codebook(8, 4, kIq3S);
  return points;
}

}  // namespace octavo
